"""`turncoat fit` without model options, and `turncoat evaluate`."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option, echo

from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json, echo_notes
from turncoat.cli.scoring import History, list_warnings, read_with_history
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat.arrays import Array
    from turncoat.data import Schema, Transactions
    from turncoat.data.splits import Split
    from turncoat.evaluation.champion import Champion
    from turncoat.evaluation.verdict import Evaluation
    from turncoat.scoring import Detector

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DATA_HELP = "Labelled files or a folder, with the customers' history before."
_FROM_HELP = "Judge only transactions from this time on (ISO date, or seconds as in the file)."


class ChampionOptions(NamedTuple):
    """What a user may say about the choice."""

    kinds: tuple[str, ...]
    budget_s: float
    max_trials: int | None  # None: as the budget allows
    label_delay_days: float
    seed: int
    refit: bool
    as_json: bool


def fit_champion(
    data: Transactions, parts: Split, options: ChampionOptions, out: Path, sources: list[Path]
) -> None:
    """Choose a detector, print its verdict on the test part, refit it to all rows and save it."""
    from turncoat.data.splits import DAY, split_automatically
    from turncoat.evaluation.champion import choose_champion
    from turncoat.evaluation.verdict import evaluate_against_baselines
    from turncoat.features import Features

    console = Console(stderr=True)
    with console.status("choosing a detector") as status:
        champion = choose_champion(
            data,
            parts,
            Features(label_delay_days=options.label_delay_days),
            kinds=options.kinds,
            budget_s=options.budget_s,
            max_trials=options.max_trials,
            seed=options.seed,
            announce=lambda text: status.update(escape(f"choosing a detector: {text}")),
        )
        status.update("evaluating it on the test part, beside XGBoost and logistic regression")
        detector = champion.detector
        figures = evaluate_against_baselines(detector, data, parts, champion.ranker, options.seed)
        if options.refit:
            status.update("fitting it again to all rows, the test part included")
            gap_s = options.label_delay_days * DAY
            rows = (data.customer_codes, data.times, data.labels)
            every = split_automatically(*rows, test=0.0, gap_s=gap_s, seed=options.seed)
            detector = detector.refit(data, every)
    replaced = out.exists()
    detector.save(out)
    if options.as_json:
        summary = _summarize(champion, detector, parts, figures, options, out)
        echo_json({**summary, "notes": data.notes})
        return
    echo(champion.describe())
    if options.max_trials is None and champion.seconds > options.budget_s:
        echo("This took longer than the budget: it is the least that can be tried.")
    echo("\nOn the test part, which nothing was fitted or chosen on:")
    echo(figures.describe())
    if detector.kind == "ranker":
        echo("XGBoost is the detector's own trees here, before they are calibrated.")
    if options.refit:
        echo("\nThe saved detector has the same choices, fitted again to all rows.")
    echo(f"\n{detector.describe()}\n")
    command = shlex.join(["turncoat", "score", str(out), *map(str, sources)])
    words = "Replaced the detector in" if replaced else "Saved to"
    echo(f"{words} {out}. Next: {command} --out scores.parquet, or turncoat serve {out}")


def evaluate(
    model: Model,
    data: Annotated[list[Path], Argument(help="Labelled files of the same schema.")],
    history: History = None,
    since: Annotated[str, Option("--from", help=_FROM_HELP)] = "",
    as_json: Json = False,
) -> None:
    """Measure a detector on a labelled file.

    Figures are of filtered scores, with 90 % intervals by customer. Rows without a label, rows
    before `--from` and rows of `--history` files are history only.

    Examples:
    `turncoat evaluate detector/ july.csv --history june.csv`
    `turncoat evaluate detector/ payments.csv --from 2024-07-01 --json`
    """
    import numpy as np

    from turncoat import load
    from turncoat.evaluation.verdict import evaluate_detector

    detector = load(model)
    with Console(stderr=True).status(escape(f"evaluating on {data[0]}")):
        transactions, rows = read_with_history(detector, data, history, needs_labels=True)
        start = parse_time("--from", since, transactions.schema) if since else -math.inf
        rows = rows[transactions.times[rows] >= start]
        if len(rows) == 0:
            raise DataError(f"{transactions.source}: no transaction is at or after --from {since}")
        rows, notes = _leave_out_open(transactions, rows)
        figures = evaluate_detector(detector, transactions, rows)
    last = detector.calibration_.time_range[1]
    judged = transactions.take(rows)
    times = judged.times[np.asarray(judged.labels) >= 0]
    seen, note = int((times <= last).sum()), ""
    if seen:
        share = f"{seen:,} of the {len(times):,} labelled transactions are not later"
        note = f"{share} than the detector's calibration data; it may have been fitted on them"
        note += ". Use --from for later ones" if seen < len(times) else ""
    keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
    scored = keys[rows], transactions.times[rows], transactions.n_seen[rows]
    warnings = list_warnings(detector, transactions.source, scored, "Give them with --history")
    if as_json:
        about = {"verdict": figures.verdict, "note": note, "warnings": warnings}
        echo_json({**asdict(figures), **about, "notes": [*transactions.notes, *notes]})
        return
    echo_notes(transactions)
    for text in notes:
        echo(f"Please note: {text}.")
    if note:
        echo(f"Please note: {note}.")
    echo(figures.describe())


def _leave_out_open(transactions: Transactions, rows: Array) -> tuple[Array, list[str]]:
    """The rows whose labels are not open, and a note on the others."""
    from turncoat.data.open_labels import find_labelled_until

    until = find_labelled_until(transactions.times, transactions.labels)
    is_open = transactions.times[rows] > (math.inf if until is None else until)
    if not is_open.any():
        return rows, []
    count, source = f"{int(is_open.sum()):,} of {len(rows):,} transactions", transactions.source
    reason = "are of the last days, with hardly anything known to be genuine: their labels are open"
    if is_open.all():
        remedy = "Wait for labels, or evaluate earlier transactions"
        raise DataError(f"{source}: {count} {reason}. {remedy}")
    return rows[~is_open], [f"{count} {reason}, and they are left out"]


def parse_budget(text: str) -> float:
    """A time such as 90s, 5m or 1h, in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if found is None or float(found[1]) == 0:
        rule = "it must be a time above 0, such as 90s, 5m or 1h"
        raise ConfigError(f"--budget is {text!r}; {rule}")
    return float(found[1]) * _UNITS[found[2]]


def parse_time(option: str, text: str, schema: Schema | None = None) -> float:
    """A time in seconds; a date without an offset is on the clock of the schema, or in UTC."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from turncoat.data import parsing

    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as problem:
        rule = "it must be an ISO date such as 2024-07-01, or seconds"
        raise ConfigError(f"{option} is {text!r}; {rule}") from problem
    if schema is None:
        return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp()
    plain = replace(schema, time_zone_column=None)
    return parsing.parse_time(plain, {plain.time: moment})


def _summarize(
    champion: Champion,
    detector: Detector,
    parts: Split,
    figures: Evaluation,
    options: ChampionOptions,
    out: Path,
) -> dict[str, Any]:
    """The choice as JSON values."""
    return {
        "out": str(out),
        "split": {part: asdict(summary) for part, summary in parts.summaries.items()},
        "kind": detector.kind,
        "states": detector.model_.n_states,
        "fraud_states": detector.n_fraud_states,
        "chain": champion.chosen.chain,
        "evidence_weights": champion.chain_features,
        "chains": [one._asdict() for one in champion.chain_trials],
        "kinds": [one._asdict() for one in champion.kind_trials],
        "seconds": champion.seconds,
        "refitted": options.refit,
        "test": {**asdict(figures), "verdict": figures.verdict},
    }
