"""`turncoat score` and `turncoat explain`: a saved detector on a file."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from turncoat.errors import ConfigError

_TOP_REASONS = 6


class Mode(StrEnum):
    """Inference modes."""

    FILTERED = "filtered"
    SMOOTHED = "smoothed"


class ScoreKind(StrEnum):
    """Kinds of scores."""

    CORRECTED = "corrected"
    RAW = "raw"


def score(
    model: Annotated[Path, typer.Argument(help="A folder written by `turncoat fit`.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A file or folder of the same schema, with the customers' earlier transactions; labels may be missing."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the scores go: .parquet or .csv.")],
    mode: Annotated[Mode, typer.Option(help="`smoothed` looks ahead, for study.")] = Mode.FILTERED,
    kind: Annotated[
        ScoreKind, typer.Option(help="`raw` is regime membership, not a probability of fraud.")
    ] = ScoreKind.CORRECTED,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Score every transaction of a file. Each is scored given those before it in the same file.

    Examples:

    `turncoat score detector/ payments.csv --out scores.parquet`

    `turncoat score detector/ payments.csv --out hindsight.csv --mode smoothed --json`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.data.writing import write_table

    if out.exists() and data.exists() and out.samefile(data):
        raise ConfigError(
            f"--out {out} is the file to be scored, and would replace it. Name another"
        )
    detector = load(model)
    with Console(stderr=True).status(escape(f"scoring {data}")):
        transactions = read_for_scoring(data, detector.features_.plan.schema)
        scores = detector.score(transactions, mode.value, kind.value)
        write_table(scores.frame(), out)
    summary = {
        "transactions": len(scores.ids),
        "mode": mode.value,
        "kind": kind.value,
        "mean_score": float(scores.value.mean()),
        "out": str(out),
    }
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(
            f"{summary['transactions']:,} transactions, {kind} {mode} scores, mean {summary['mean_score']:.4f}; written to {out}"
        )


def explain(
    model: Annotated[Path, typer.Argument(help="A folder written by `turncoat fit`.")],
    data: Annotated[Path, typer.Argument(help="A file or folder of the same schema.")],
    customer: Annotated[str, typer.Option(help="The customer's key.")],
    transaction: Annotated[
        str | None, typer.Option(help="One transaction's id; all reasons are shown.")
    ] = None,
    last: Annotated[
        int, typer.Option(min=0, help="Show only so many of the latest transactions; 0 for all.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """Show a customer's path through the regimes. Each transaction comes with why it was scored as it was.

    Examples:

    `turncoat explain detector/ payments.csv --customer 10042`

    `turncoat explain detector/ payments.csv --customer 10042 --transaction P000017 --json`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring

    detector = load(model)
    transactions = read_for_scoring(data, detector.features_.plan.schema)
    shown = last if last and transaction is None and not as_json else None
    path = detector.explain(transactions, customer, transaction, shown)
    if as_json:
        typer.echo(json.dumps([{"id": str(name), **one._asdict()} for name, one in path]))
        return
    console = Console(soft_wrap=True, highlight=False)
    told = "filtered; what adds to the log odds of the fraud regime against its strongest rival"
    console.print(
        f"Customer {customer}, {'up to ' if transaction else ''}{path[-1][1].seen} transactions, {told}",
        markup=False,
    )
    for name, one in path:
        regime = f"regime {one.regime}{' (fraud)' if one.regime == detector.regimes.fraud_state else ''}, belief {max(one.belief):.0%}"
        low, high = one.interval
        console.print(
            f"\n{name}  P(fraud) {one.probability:.1%} ({low:.1%} to {high:.1%})  {regime}",
            style="bold",
            markup=False,
        )
        for reason in one.reasons if transaction is not None else one.reasons[:_TOP_REASONS]:
            console.print(f"  {reason.log_odds:>+8.1f}  {reason.text}", markup=False)
