"""Measures the engine beside its peers in one seeded run.

`python -m benchmarks.engine [--quick] [--sweep]`.
"""
