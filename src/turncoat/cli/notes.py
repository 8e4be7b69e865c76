"""What reading left out of the data, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import echo

if TYPE_CHECKING:
    from turncoat.data import Transactions


def echo_notes(transactions: Transactions) -> None:
    """Print what was left out, one line each."""
    for note in transactions.notes:
        echo(f"Please note: {note}.")
