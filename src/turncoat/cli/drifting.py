"""`turncoat drift`: how far a file is from the transactions that a detector was calibrated on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option, echo

from turncoat.cli.choosing import parse_time
from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json, echo_notes
from turncoat.cli.scoring import History, list_warnings, read_with_history
from turncoat.errors import DataError

if TYPE_CHECKING:
    from turncoat.scoring.drift import DriftReport

_FROM_HELP = "Compare only transactions from this time on (ISO date, or seconds as in the file)."
_OPEN_LABELS = (
    "labels of the last days are not known yet, so features of the counterparties' known labels "
    "are not compared"
)
_REMEDIES = {
    "too few": "Give more transactions, or longer histories with --history.",
    "stable": "Nothing to do.",
    "watch": "Look again with the next file.",
    "drifted": "Recalibrate the detector with new labels, or fit it again.",
}


def drift(
    model: Model,
    data: Annotated[list[Path], Argument(help="Files or a folder of the same schema.")],
    history: History = None,
    since: Annotated[str, Option("--from", help=_FROM_HELP)] = "",
    as_json: Json = False,
) -> None:
    """Compare a file with the transactions of calibration.

    Needs no labels. Rows before `--from` and rows of `--history` files are history only.

    Examples:
    `turncoat drift detector/ july.csv --history june.csv`
    `turncoat drift detector/ payments.csv --from 2024-07-01 --json`
    """
    import numpy as np

    from turncoat import load
    from turncoat.scoring.drift import has_open_labels, measure_drift

    detector = load(model)
    with Console(stderr=True).status(escape(f"comparing {data[0]}")):
        transactions, rows = read_with_history(detector, data, history)
        if since:
            start = parse_time("--from", since, transactions.schema)
            rows = rows[transactions.times[rows] >= start]
        if len(rows) == 0:
            raise DataError(f"{transactions.source}: no transaction is at or after --from {since}")
        report = measure_drift(detector, transactions, rows)
    keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
    scored = keys[rows], transactions.times[rows], transactions.n_seen[rows]
    warnings = list_warnings(detector, transactions.source, scored, "Give them with --history")
    plan = detector.features_.plan
    if set(plan.of_labels) & set(plan.continuous) and has_open_labels(transactions):
        transactions = replace(transactions, notes=(*transactions.notes, _OPEN_LABELS))
    if as_json:
        echo_json({**asdict(report), "warnings": warnings, "notes": transactions.notes})
        return
    echo_notes(transactions)
    echo(_describe(report))


def _describe(report: DriftReport) -> str:
    """The verdict, and what has changed beyond chance."""
    lines = [f"{report.verdict}: {report.transactions:,.0f} transactions compared"]
    if report.left_out:
        rule = f"of customers known for less than {report.min_age_days:.3g} days, are left out"
        lines[0] += f"; {report.left_out:,.0f}, {rule}"
    score = report.score
    if score.mean_now is not None:
        text = f"scores: mean {score.mean_now:.3g}, at calibration {score.mean_then:.3g}"
        lines.append(f"  {text} ({score.verdict})")
    alarms = ("watch", "drifted")
    for regime in report.regimes:
        if regime.verdict in alarms and regime.occupancy_now is not None:
            shares = f"{regime.occupancy_now:.1%} of transactions, {regime.occupancy_then:.1%}"
            lines.append(f"  regime {regime.regime}: {shares} at calibration ({regime.verdict})")
        for one in regime.features:
            if one.verdict in alarms:
                text = f"mean moved by {one.shift:+.2f} standard deviations"
                lines.append(f"  regime {regime.regime}, {one.feature}: {text} ({one.verdict})")
    return "\n".join([*lines, _REMEDIES[report.verdict]])
