"""Benchmarks: ratios against peers, measured in turns in one run."""
