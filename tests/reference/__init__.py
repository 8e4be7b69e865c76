"""Independent oracles.

Plain NumPy and SciPy written from the method's formulas, never from Turncoat's code.
"""
