"""`turncoat score` and `turncoat explain`: apply a saved detector to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option, echo

from turncoat.cli.detectors import Model
from turncoat.cli.notes import echo_notes
from turncoat.errors import ConfigError

if TYPE_CHECKING:
    from turncoat.scoring.reasons import Reason

_MAX_REASONS = 6
_DATA_HELP = "Files or a folder of the same schema, with earlier transactions too; labels optional."
_MODE_HELP = "`filtered` uses the past only; `smoothed` looks ahead, for analysis."
_KIND_HELP = "`corrected` is a probability of fraud; `raw` is membership of the fraud regime."
_REASONS_HELP = "Add reasons to `all` transactions, or `above:P` to those with P(fraud) >= P."
_PATH_HELP = "Open `this customer's path`: show the regimes' own reasons beside the trees'."


def score(
    model: Model,
    data: Annotated[list[Path], Argument(help=_DATA_HELP)],
    out: Annotated[Path, Option(help="Output file: .parquet or .csv.")],
    mode: Annotated[Literal["filtered", "smoothed"], Option(help=_MODE_HELP)] = "filtered",
    kind: Annotated[Literal["corrected", "raw"], Option(help=_KIND_HELP)] = "corrected",
    reasons: Annotated[str, Option(help=_REASONS_HELP)] = "none",
    as_json: Annotated[bool, Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Score every transaction of a file. A score uses the customer's earlier rows in the file.

    Examples:
    `turncoat score detector/ payments.csv --out scores.parquet`
    `turncoat score detector/ payments.csv --out scores.csv --reasons above:0.05`
    `turncoat score detector/ payments.csv --out hindsight.csv --mode smoothed --json`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.data.sources import write_table
    from turncoat.scoring.reasons import parse_min_probability

    if out.exists() and any(path.exists() and out.samefile(path) for path in data):
        raise ConfigError(f"--out {out} would overwrite the input file. Choose another path")
    parse_min_probability(reasons)  # before any long work
    detector = load(model)
    with Console(stderr=True).status(escape(f"scoring {data[0]}")):
        transactions = read_for_scoring(data, detector.features_.plan.schema)
        scores = detector.score(transactions, mode, kind, reasons=reasons)
        write_table(scores.frame(), out)
    n, mean = len(scores.ids), float(scores.value.mean())
    if as_json:
        summary = {"transactions": n, "mode": mode, "kind": kind, "mean_score": mean}
        echo(json.dumps({**summary, "notes": transactions.notes, "out": str(out)}))
    else:
        echo_notes(transactions)
        echo(f"{n:,} transactions, {kind} {mode} scores, mean {mean:.4f}. Wrote {out}")


def explain(
    model: Model,
    data: Annotated[list[Path], Argument(help="Files or a folder with the same schema.")],
    customer: Annotated[str, Option(help="Key of the customer.")],
    transaction: Annotated[str | None, Option(help="Id of one, to show all its reasons.")] = None,
    last: Annotated[int, Option(min=0, help="How many of the latest to show; 0 shows all.")] = 20,
    opens_path: Annotated[bool, Option("--path", help=_PATH_HELP)] = False,
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the path of a customer through the regimes. Each score comes with its reasons.

    Examples:
    `turncoat explain detector/ payments.csv --customer 10042`
    `turncoat explain detector/ payments.csv --customer 10042 --transaction P000017 --json`
    `turncoat explain hybrid/ payments.csv --customer 10042 --transaction P000017 --path`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring

    detector = load(model)
    transactions = read_for_scoring(data, detector.features_.plan.schema)
    limit = last if last and transaction is None and not as_json else None
    path = detector.explain(transactions, customer, transaction, limit, opens_path)
    if as_json:
        found = [{"id": str(name), **item._asdict()} for name, item in path]
        echo(msgspec.json.encode(found).decode())
        return
    console = Console(soft_wrap=True, highlight=False)
    up_to = "up to transaction" if transaction else "transactions:"
    title = f"Customer {customer}, {up_to} {path[-1][1].n_seen}. Filtered scores."
    console.print(title, markup=False)
    has_trees = hasattr(detector.calibration_.ranker, "explain")
    what = "trees, before calibration" if has_trees else "the fraud regime against the next best"
    rule = f"Reasons add to the log odds of {what}."
    if detector.kind == "chains":
        has_shares = any(reason.share is not None for reason in path[-1][1].reasons)
        rule = (
            f"Reasons are the causes of fraud, with their {'shares' if has_shares else 'log odds'}."
        )
    console.print(rule)
    for name, item in path:
        low, high = item.interval
        is_fraud = " (fraud)" if item.regime == detector.regimes.fraud_state else ""
        probability = f"P(fraud) {item.probability:.1%} ({low:.1%} to {high:.1%})"
        regime = f"regime {item.regime}{is_fraud}, belief {max(item.belief):.0%}"
        console.print(f"\n{name}  {probability}  {regime}", style="bold", markup=False)
        n_shown = _MAX_REASONS if transaction is None else None
        for reason in item.reasons[:n_shown]:
            console.print(f"  {_show_strength(reason)}  {reason.text}", markup=False)
        if item.path_reasons:
            whose = "the path's own reasons, for the fraud regime against the next best:"
            whose = "the causes of fraud behind it:" if detector.kind == "chains+trees" else whose
            console.print(f"  {whose}")
        for reason in item.path_reasons[:n_shown]:
            console.print(f"    {_show_strength(reason)}  {reason.text}", markup=False)


def _show_strength(reason: Reason) -> str:
    """The share of a cause, or the log odds of any other reason."""
    if reason.share is not None:
        return f"{reason.share:>8.0%}"
    return f"{reason.log_odds:>+8.1f}"
