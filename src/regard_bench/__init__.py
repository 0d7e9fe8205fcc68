"""Benchmarks: ratios to other libraries and to the machine's limit, each measured alternately in one run."""
