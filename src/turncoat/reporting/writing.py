"""A report on disk. All of it is made before the first file is written, and each file is replaced in one instant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turncoat.errors import BundleError
from turncoat.evaluation.results import Results
from turncoat.reporting.page import make_report
from turncoat.storage import replace_file


def write_report(results: Results, manifest: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html`, `tables/*.csv` and `figures/*.svg` and `*.png` into a folder; the page's path."""
    report = make_report(results, manifest)
    files = {f"tables/{table.name}.csv": table.csv() for table in report.tables}
    for figure in report.figures:
        files |= {
            f"figures/{figure.name}.svg": figure.svg,
            f"figures/{figure.name}.png": figure.png,
        }
    files["report.html"] = report.html().encode()
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
    except OSError as problem:
        raise BundleError(f"cannot write the report to {folder}: {problem}") from problem
    return folder / "report.html"
