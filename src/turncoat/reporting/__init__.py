"""Turns results into tables, figures and one self-contained HTML page. Computes no number."""

from turncoat.reporting.page import write_report

__all__ = ["write_report"]
