"""Results into tables, figures and one self-contained page. Computes no number."""

from turncoat.reporting.writing import write_report

__all__ = ["write_report"]
