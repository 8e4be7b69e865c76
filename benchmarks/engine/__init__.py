"""Measure the engine and its peers in one seeded run: `python -m benchmarks.engine`."""
