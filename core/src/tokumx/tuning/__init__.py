"""Search for configs, and the writing of tuned records."""

from tokumx.tuning.autotune import TuneSettings, autotune
from tokumx.tuning.cache import install
from tokumx.tuning.result import TuningResult
from tokumx.tuning.trial import Trial

__all__ = ["Trial", "TuneSettings", "TuningResult", "autotune", "install"]
