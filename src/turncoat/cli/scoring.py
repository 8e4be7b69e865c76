"""`turncoat score`: apply a saved detector to a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option, echo

from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json, echo_notes
from turncoat.cli.stores import STORE_KINDS, Pseudonymise, load_pseudonyms, open_store
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from polars import DataFrame

    from turncoat import Detector
    from turncoat.arrays import Array
    from turncoat.data.transactions import Transactions
    from turncoat.serving.decoding import Pseudonymiser

_DATA_HELP = "Files or a folder of the same schema; labels optional."
_HISTORY_HELP = "Earlier transactions of the same schema, labels optional; may be repeated."
_STORE_HELP = f"Beliefs of the service, {STORE_KINDS}, instead of a history."
_UPDATE_HELP = "Write beliefs and log to the store. The same file again changes nothing."
_RETENTION_HELP = "With --update: delete log entries written before that; 0 keeps all."
_MODE_HELP = "`filtered` uses the past only; `smoothed` looks ahead, for analysis."
_KIND_HELP = "`corrected` is a probability of fraud; `raw` is membership of the fraud regime."
_REASONS_HELP = "Add reasons to `all` transactions, or `above:P` to those with P(fraud) >= P."
_RUN_HELP = "Id of this run in the output. Default: a digest of model, options and input."
_MAX_FUTURE_S = 86400.0  # of a transaction that changes the store, ahead of the clock
History = Annotated[list[Path] | None, Option("--history", help=_HISTORY_HELP)]


def score(
    model: Model,
    data: Annotated[list[Path], Argument(help=_DATA_HELP)],
    out: Annotated[Path, Option(help="Output file: .parquet or .csv.")],
    history: History = None,
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    update: Annotated[bool, Option("--update", help=_UPDATE_HELP)] = False,
    pseudonymise: Pseudonymise = False,
    retention_days: Annotated[float, Option(min=0, help=_RETENTION_HELP)] = 0.0,
    mode: Annotated[Literal["filtered", "smoothed"], Option(help=_MODE_HELP)] = "filtered",
    kind: Annotated[Literal["corrected", "raw"], Option(help=_KIND_HELP)] = "corrected",
    reasons: Annotated[str, Option(help=_REASONS_HELP)] = "none",
    run_id: Annotated[str, Option(help=_RUN_HELP)] = "",
    as_json: Json = False,
) -> None:
    """Score every transaction of a file.

    A score depends on the customer's earlier transactions: those in the file, in `--history`
    files, or behind the beliefs of a `--store`. Without them known customers are scored as new
    ones, and a warning says so.

    Examples:
    `turncoat score detector/ payments.csv --out scores.parquet`
    `turncoat score detector/ july.csv --history may.csv --history june.csv --out july.parquet`
    `turncoat score detector/ today.csv --store sqlite:///beliefs.sqlite --update --out today.csv`
    `turncoat score detector/ payments.csv --out scores.csv --reasons above:0.05`
    `turncoat score detector/ payments.csv --out hindsight.csv --mode smoothed --json`
    """
    import polars as pl

    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.data.sources import write_table
    from turncoat.scoring.reasons import parse_min_probability
    from turncoat.serving.maintenance import digest_file
    from turncoat.storage import digest

    inputs = [path for path in (*data, *(history or ())) if path.exists()]
    if out.exists() and any(map(out.samefile, inputs)):
        raise ConfigError(f"--out {out} would overwrite an input file. Choose another path")
    _check_store_options(store, update, pseudonymise, bool(history), mode)
    if retention_days and not update:
        raise ConfigError("--retention-days needs --update, because it changes the store")
    parse_min_probability(reasons)  # before any long work
    detector = load(model)
    number, counts = detector.calibration_.number, dict[str, int]()
    with Console(stderr=True).status(escape(f"scoring {data[0]}")):
        if store:
            transactions = read_for_scoring(data, detector.features_.plan.schema)
            options = (store, kind, reasons, update, load_pseudonyms(pseudonymise))
            work = _score_with_store(detector, transactions, *options, retention_days)
            table, counts = asyncio.run(work)
            scored = transactions
        else:
            transactions, rows = read_with_history(detector, data, history)
            scores = detector.score(transactions, mode, kind, reasons=reasons, rows=rows)
            model_columns = (
                pl.lit(detector.digest_).alias("model"),
                pl.lit(number).alias("calibration"),
            )
            table = scores.frame().with_columns(*model_columns)
            scored = transactions.take(rows)
        settings = mode, kind, reasons, bool(store), update
        about = [detector.digest_, number, *settings, digest_file(transactions)]
        run_id = run_id or digest(about)[:16]
        table = _add_facts(table.with_columns(run_id=pl.lit(run_id)), detector, scored)
        write_table(table, out)
    known = table.filter(pl.col("n_seen").is_not_null())
    columns = [known[name].to_numpy() for name in ("customer", "time", "n_seen")]
    remedy = "Give them with --history, or with --store"
    if store:
        remedy = f"`turncoat replay {model} FILE --store {store}` loads them"
    warnings = list_warnings(detector, transactions.source, columns, remedy)
    if not store and transactions.labels is None:
        warnings += _warn_of_labels(detector, transactions.source)
    n, mean = len(table), float(table["score"].to_numpy().mean())
    if as_json:
        summary = {"transactions": n, "mode": mode, "kind": kind, "mean_score": mean, **counts}
        notes = {"warnings": warnings, "notes": transactions.notes}
        versions = {"model": detector.digest_, "calibration": number, "run_id": run_id}
        echo_json({**summary, "out": str(out), **versions, **notes})
        return
    echo_notes(transactions)
    echo(f"{n:,} transactions, {kind} {mode} scores, mean {mean:.4f}. Wrote {out}")
    if counts:
        new, again, late = (f"{counts[name]:,}" for name in ("scored", "duplicates", "late"))
        echo(f"{new} new, {again} scored before, {late} late")


def _add_facts(table: DataFrame, detector: Detector, transactions: Transactions) -> DataFrame:
    """The table with local time, amount and currency of its transactions, where there are any."""
    import polars as pl

    facts = dict[str, pl.Series]()
    if detector.live.has_calendar_times:
        milliseconds = (transactions.clocks * 1e3).round().astype("int64")
        facts["local_time"] = pl.Series(milliseconds).cast(pl.Datetime("ms"))
    for name, values in transactions.list_payments().items():
        facts[name] = pl.Series(values, nan_to_null=True)
    names = list(table.columns)
    place = names.index("time") + 1
    return table.with_columns(**facts).select(*names[:place], *facts, *names[place:])


def _check_store_options(
    store: str, update: bool, pseudonymise: bool, has_history: bool, mode: str
) -> None:
    """Refuse options that do not go together."""
    if not store and (update or pseudonymise):
        option = "--update" if update else "--pseudonymise"
        raise ConfigError(f"{option} needs --store. Name the store of the service")
    if store and has_history:
        raise ConfigError("--store and --history are two histories. Leave one of them out")
    if store and mode != "filtered":
        raise ConfigError(
            f"--mode {mode} looks ahead, and a store only knows the past. Leave it out"
        )


def read_with_history(
    detector: Detector,
    data: Sequence[Path],
    history: Sequence[Path] | None,
    needs_labels: bool = False,
) -> tuple[Transactions, Array]:
    """Return the transactions of files together with their history, and the files' own rows."""
    from turncoat.data import read, read_for_scoring
    from turncoat.data.transactions import add_history

    schema = detector.features_.plan.schema
    current = (read if needs_labels else read_for_scoring)(data, schema)
    return add_history(current, *(read_for_scoring(path, schema) for path in history or ()))


def _warn_of_labels(detector: Detector, source: str) -> list[str]:
    """Return a warning if scores lack labels that the detector learnt from; print it on stderr."""
    plan = detector.features_.plan
    if not plan.counterparties or plan.schema.label is None:
        return []
    warning = (
        f"{source} has no column {plan.schema.label!r}: nothing is known of frauds at its "
        "counterparties, and scores may be too high or too low. Add the column, empty where a "
        "label is unknown, or give labelled files with --history"
    )
    _print_warning(warning)
    return [warning]


def list_warnings(
    detector: Detector, source: str, scored: Sequence[Array], remedy: str
) -> list[str]:
    """Return what is wrong with scores; also print it on stderr.

    `scored` are customers, times and `n_seen` [N] of the transactions.
    """
    missing = detector.known_customers_.describe_missing(source, *scored)
    if missing is None:
        return []
    warning = f"{missing}. {remedy}"
    _print_warning(warning)
    return [warning]


def _print_warning(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"warning: {text}", markup=False)


async def _score_with_store(
    detector: Detector,
    transactions: Transactions,
    url: str,
    kind: str,
    reasons: str,
    update: bool,
    pseudonymiser: Pseudonymiser | None,
    retention_days: float,
) -> tuple[DataFrame, dict[str, int]]:
    """Return the table of scores, and how many were new, duplicate and late."""
    from turncoat.scoring.reasons import parse_min_probability
    from turncoat.serving.maintenance import score_file, tabulate_responses
    from turncoat.serving.responses import ScoredResponse
    from turncoat.serving.stores.dry_run import DryRunStore
    from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

    ahead_s = transactions.times.max() - time.time()
    if update and detector.live.has_calendar_times and ahead_s > _MAX_FUTURE_S:
        problem = f"its latest transaction is {ahead_s / 86400:.1f} days ahead of the clock"
        remedy = "Correct its time: all later transactions of this customer would be late"
        raise DataError(f"{transactions.source}: {problem}. {remedy}")
    policy = UpdatePolicy(min_probability=parse_min_probability(reasons), logs=update)
    bodies = [b""] * transactions.n_rows
    counts = {"scored": 0, "duplicates": 0, "late": 0}
    async with open_store(url) as store:
        updater = BeliefUpdater(store if update else DryRunStore(store), policy)
        async for rows, responses in score_file(updater, detector, transactions, pseudonymiser):
            for row, response in zip(rows, responses, strict=True):
                if isinstance(response, ScoredResponse):
                    bodies[row] = response.body
                    counts["duplicates" if response.duplicate else "scored"] += 1
                    counts["late"] += response.late
        if retention_days:
            limit, n_deleted = time.time() - retention_days * 86400, 1
            while n_deleted:
                n_deleted = await store.delete_entries_before(limit)
    return tabulate_responses(transactions, bodies, kind), counts
