"""Lets tests import the demo's modules, as `python e2e_tests/flax/demo.py` does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
