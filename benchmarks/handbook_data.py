"""The option that names the Handbook's transactions, for all benchmarks that read them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

PAGE = "docs/benchmarks.md"


def parse_with_data(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None = None,
    *,
    is_optional: bool = False,
) -> argparse.Namespace:
    """The parsed arguments, with the path `data` of a Parquet file, or None if it is optional.

    Exits with status 2 if the file is not named or does not exist.
    """
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help=f"Parquet file of the Handbook's transactions; {PAGE} says how to get it",
    )
    parsed = parser.parse_args(arguments)
    remedy = f"{PAGE} says how to get the Handbook's transactions"
    if parsed.data is None and not is_optional:
        parser.error(f"--data FILE is required. {remedy}")
    if parsed.data is not None and not parsed.data.is_file():
        parser.error(f"--data: there is no file {parsed.data}. {remedy}")
    return parsed
