"""Explained transactions as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turncoat.errors import DataError
from turncoat.reporting import formatting as show
from turncoat.scoring.explanations import Explanation
from turncoat.storage import replace_file


def write_page(path: Path, title: str, rule: str, explained: Sequence[Explanation]) -> None:
    """Write the page; `rule` says what the numbers beside the reasons are."""
    page = show.render("explanations.html.jinja", title=title, rule=rule, explained=explained)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page.encode())
    except OSError as problem:
        raise DataError(f"{path}: cannot be written: {problem}") from problem
