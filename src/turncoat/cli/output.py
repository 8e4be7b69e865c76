"""What every command prints beside its own text: one JSON object, notes, errors and exit codes."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import msgspec
import typer
from rich.console import Console
from typer import Option, echo

from turncoat.errors import (
    BundleError,
    ClusterError,
    ConfigError,
    DataError,
    NotFittedError,
    StateError,
    StoreError,
    StoreUnavailableError,
    TurncoatError,
)

if TYPE_CHECKING:
    from turncoat.data import Transactions

Json = Annotated[bool, Option("--json", help="Print one JSON object, for an error too.")]
# The base of all mistakes in a command line. Newer versions of Typer keep a copy of click's.
UsageError: Any = typer.BadParameter.__base__


class ErrorKind(NamedTuple):
    """Errors that leave the same exit code."""

    name: str
    exit_code: int
    meaning: str
    types: tuple[type[BaseException], ...]


INTERRUPTED = ErrorKind("interrupted", 130, "stopped by Ctrl-C", (KeyboardInterrupt,))
INTERNAL = ErrorKind("internal", 1, "memory, disk, permissions, or a bug", (BaseException,))
_USAGE = UsageError, typer.Abort, ConfigError, NotFittedError
_UNAVAILABLE = StoreUnavailableError, ClusterError
ERROR_KINDS = (  # the first with a fitting type counts
    ErrorKind("usage", 2, "wrong option, argument or setting", _USAGE),
    ErrorKind("unavailable", 75, "store or cluster out of reach: try again", _UNAVAILABLE),
    ErrorKind("store", 5, "store missing, full or damaged", (StoreError, StateError)),
    ErrorKind("model", 4, "saved model or run missing, damaged or not saved", (BundleError,)),
    ErrorKind("data", 3, "a file is missing, breaks a rule or cannot be written", (DataError,)),
    INTERRUPTED,
    INTERNAL,
)


def echo_json(content: dict[str, Any]) -> None:
    """Print the one JSON object of a command; NaN becomes null."""
    echo(msgspec.json.encode(content, enc_hook=lambda number: number.item()).decode())


def echo_notes(transactions: Transactions) -> None:
    """Print what reading left out, one line each."""
    for note in transactions.notes:
        echo(f"Please note: {note}.")


def find_kind(error: BaseException) -> ErrorKind:
    """Return the kind of an error."""
    return next(kind for kind in ERROR_KINDS if isinstance(error, kind.types))


def exit_with_error(error: BaseException, as_json: bool) -> NoReturn:
    """Print an error on stderr, with `as_json` also as an object on stdout, and exit."""
    kind, message = find_kind(error), _describe(error)
    if isinstance(error, UsageError):
        error.show()  # with the usage of the command
    elif kind is not INTERRUPTED:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(f"turncoat: {message}", markup=False)
    if as_json:
        content = {"kind": kind.name, "message": message, "exit_code": kind.exit_code}
        with suppress(OSError):  # stdout itself may be what failed
            echo_json({"error": content})
    sys.exit(kind.exit_code)


def _describe(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return str(error.format_message())
    if isinstance(error, typer.Abort):
        return "not confirmed, so nothing was changed. Answer y, or give --yes"
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}. Use fewer rows at a time"
    if isinstance(error, TurncoatError):
        return str(error)
    return f"{type(error).__name__}: {error} (TURNCOAT_DEBUG=1 shows the traceback)"


def list_exit_codes() -> str:
    """Return a line for each exit code, for the help."""
    codes = {0: "done"} | {one.exit_code: f"{one.name}: {one.meaning}" for one in ERROR_KINDS}
    return "\n".join(f"  {code:>3}  {codes[code]}" for code in sorted(codes))
