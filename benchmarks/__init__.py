"""Benchmarks of Turncoat, each run as `python -m benchmarks.<name>`."""
