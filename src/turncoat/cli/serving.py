"""`turncoat serve`, `replay`, `recalibrate`, `erase` and `new-key`: a detector in production."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.progress import Progress
from typer import Argument, Context, Option, confirm, echo

from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json, echo_notes
from turncoat.cli.stores import (
    STORE_KINDS,
    UPDATE_HELP,
    Pseudonymise,
    StoreUrl,
    load_pseudonyms,
    open_store,
)
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat import Detector
    from turncoat.data.transactions import Transactions
    from turncoat.serving.decoding import Pseudonymiser

DAY = 86400.0

LatePolicy = Literal["keep", "apply", "refuse"]
LogFormat = Literal["text", "json"]
_LATE_HELP = "Transaction older than the belief: score only, also update, or refuse."
_LABELS_HELP = "Frauds will be reported to /v1/labels; the unreported count as genuine."
_CREATE_HELP = "Create the SQLite file of --store if it is missing."
_KEYS_HELP = "File of API keys (`turncoat new-key`), added to TURNCOAT_API_KEYS."
_REASONS_HELP = "Which transactions get reasons: `all`, `none`, or `above:P` for P(fraud) >= P."
_N_REASONS_HELP = "Number of reasons in a response; the rest are summed."
_RETENTION_HELP = (
    "How long log entries are kept; 0 keeps them for ever. Default: 30 days longer than the label "
    "delay and maturity."
)
_FUTURE_HELP = "How far ahead of the clock a transaction's time may be."
_RATE_HELP = "Requests per second of each caller; 0 is no limit."
_DEADLINE_HELP = "Deadline of a request; after it the answer is 503."
_BODY_HELP = "Time a client may take to send a body."
_IDLE_HELP = "Time until the headers of a connection's next request."
_RELOAD_HELP = "Time between checks for a new model; 0 never checks."
_USE_HELP = "Switch to an earlier calibration; 0 is the one at fit."
_KEEP_HELP = "Weight of the calibration at fit; 0 forgets it."
_LOG_HELP = "Log the transactions, for late arrivals and for rebuilding beliefs."
_REPORTED_HELP = "Use reported labels only, genuine ones included."
_DRY_RUN_HELP = "Show the new fraud rates and change nothing."
_AGE_HELP = (
    "Age at which the unreported count as genuine, not before. Default: label delay and maturity."
)


def serve(
    context: Context,
    model: Model,
    store: StoreUrl = "",
    create_store: Annotated[bool, Option("--create-store", help=_CREATE_HELP)] = False,
    host: Annotated[str, Option(help="Needs --keys unless it is loopback.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535)] = 8000,
    workers: Annotated[int, Option(min=1, help="Processes that share port and store.")] = 1,
    keys: Annotated[Path | None, Option(help=_KEYS_HELP)] = None,
    late_policy: Annotated[LatePolicy, Option("--late", help=_LATE_HELP)] = "keep",
    expect_labels: Annotated[bool, Option(help=_LABELS_HELP)] = True,
    labels_update_belief: Annotated[bool, Option(help=UPDATE_HELP)] = True,
    pseudonymise: Pseudonymise = False,
    reasons: Annotated[str, Option(help=_REASONS_HELP)] = "all",
    n_reasons: Annotated[int, Option(min=1, help=_N_REASONS_HELP)] = 4,
    retention_days: Annotated[float | None, Option(min=0, help=_RETENTION_HELP)] = None,
    max_future_s: Annotated[float, Option(min=0, help=_FUTURE_HELP)] = 86400.0,
    rate_limit_per_s: Annotated[float, Option(min=0, help=_RATE_HELP)] = 0.0,
    max_body_bytes: Annotated[int, Option(min=1024, help="Bytes of one transaction.")] = 1_048_576,
    max_batch_lines: Annotated[int, Option(min=1, help="Maximum lines of one batch.")] = 100_000,
    max_connections: Annotated[int, Option(min=1, help="Connections of a worker at once.")] = 1000,
    request_timeout_s: Annotated[float, Option(min=0.01, help=_DEADLINE_HELP)] = 2.0,
    client_timeout_s: Annotated[float, Option(min=0.1, help=_BODY_HELP)] = 10.0,
    idle_timeout_s: Annotated[float, Option(min=0.1, help=_IDLE_HELP)] = 10.0,
    reload_interval_s: Annotated[float, Option(min=0, help=_RELOAD_HELP)] = 2.0,
    log_format: Annotated[LogFormat, Option(help="Lines of text or of JSON.")] = "text",
    as_json: Json = False,
) -> None:
    """Score transactions over HTTP. Every customer's belief is in a store.

    The log goes to stderr. `--json` prints the address at the start.

    Examples:
    `turncoat serve detector/`
    `turncoat serve run/`
    `turncoat serve detector/ --store redis://127.0.0.1:6379/0 --workers 2`
    `turncoat serve detector/ --host 0.0.0.0 --keys keys.txt --rate-limit-per-s 500`
    `turncoat serve detector/ --reasons above:0.05`
    """
    for name in ("granian", "prometheus_client", "starlette"):
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install 'turncoat[serve]'")
    from turncoat.serving.server import serve as run
    from turncoat.serving.settings import ServiceSettings, default_store_url

    derived = {
        "model_path": str(model),
        "store_url": store or default_store_url(model),
        "create_store": create_store or not store or store.startswith("memory:"),
        "keys_file": None if keys is None else str(keys),
    }
    same_names = context.params.keys() & set(ServiceSettings.__struct_fields__)
    settings = ServiceSettings(**{name: context.params[name] for name in same_names} | derived)
    if not as_json:
        run(settings)
        return
    about = {"model": str(model), "store": settings.store_url, "workers": workers}
    run(settings, lambda url: echo_json({"url": url, **about}))


def replay(
    model: Model,
    data: Annotated[list[Path], Argument(help="Files or a folder of the same schema.")],
    store: StoreUrl = "",
    log: Annotated[bool, Option(help=_LOG_HELP)] = True,
    pseudonymise: Pseudonymise = False,
    as_json: Json = False,
) -> None:
    """Fill a store with history. Transactions count in time order; a second run resumes a first.

    Examples:
    `turncoat replay detector/ history.csv`
    `turncoat replay detector/ history.parquet --store redis://127.0.0.1:6379/0 --no-log`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.serving.settings import default_store_url

    pseudonyms = load_pseudonyms(pseudonymise)
    detector = load(model)
    transactions = read_for_scoring(data, detector.features_.plan.schema)
    url = store or default_store_url(model)
    if url.startswith("memory:"):
        raise ConfigError("a store in memory ends with the replay. Use a SQLite file or Redis")
    try:
        counts = asyncio.run(_replay(detector, transactions, url, log, pseudonyms))
    except KeyboardInterrupt:
        echo("stopped; run the same command again to resume", err=True)
        raise
    if as_json:
        echo_json({**counts, "notes": transactions.notes})
        return
    echo_notes(transactions)
    echo(
        f"{counts['scored']:,} transactions replayed ({counts['done_before']:,} before), "
        f"{counts['duplicates']:,} duplicates, {counts['late']:,} late (beliefs unchanged), "
        f"{counts['refused']:,} refused"
    )
    if counts["refused"]:
        echo(f"first refusal: {counts['first_refusal']}")


async def _replay(
    detector: Detector, rows: Transactions, url: str, log: bool, pseudonyms: Pseudonymiser | None
) -> dict[str, Any]:
    """Return how many transactions were scored, duplicate, late and refused."""
    from turncoat.serving.maintenance import replay as run
    from turncoat.serving.responses import ScoredResponse
    from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

    async with open_store(url, create=True) as store:
        updater = BeliefUpdater(store, UpdatePolicy(logs=log, n_reasons=0))
        counts: dict[str, Any] = {"scored": 0, "duplicates": 0, "late": 0, "refused": 0}
        counts |= {"done_before": 0, "first_refusal": None}
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("replaying", total=rows.n_rows)
            async for batch, responses in run(updater, detector, rows, pseudonyms):
                for one in responses:
                    if not isinstance(one, ScoredResponse):
                        counts["refused"] += 1
                        counts["first_refusal"] = counts["first_refusal"] or str(one)
                        continue
                    kind = "duplicates" if one.duplicate else "late" if one.late else "scored"
                    counts[kind] += 1
                counts["done_before"] += len(batch) - len(responses)
                progress.advance(bar, len(batch))
        return counts


def recalibrate(
    model: Model,
    store: StoreUrl = "",
    keep: Annotated[float, Option(min=0.0, max=1.0, help=_KEEP_HELP)] = 1.0,
    delay_days: Annotated[float | None, Option(min=0.0, help=_AGE_HELP)] = None,
    reported_only: Annotated[bool, Option("--reported-only", help=_REPORTED_HELP)] = False,
    dry_run: Annotated[bool, Option("--dry-run", help=_DRY_RUN_HELP)] = False,
    use: Annotated[int | None, Option(min=0, help=_USE_HELP)] = None,
    show: Annotated[bool, Option("--list", help="List the calibrations.")] = False,
    as_json: Json = False,
) -> None:
    """Update the regimes' fraud rates with reported labels. Nothing is refitted.

    A running service loads the new calibration by itself. Earlier ones are kept.

    Examples:
    `turncoat recalibrate detector/`
    `turncoat recalibrate detector/ --store redis://127.0.0.1:6379/0 --keep 0.5`
    `turncoat recalibrate detector/ --dry-run`
    `turncoat recalibrate detector/ --use 0`
    """
    from turncoat import load
    from turncoat.scoring import bundle
    from turncoat.scoring.regimes import MIN_OUTCOMES
    from turncoat.serving.settings import default_store_url

    if use is not None and dry_run:
        raise ConfigError("--dry-run and --use exclude each other. Use one of them")
    if use is not None:
        bundle.use_calibration(model, use)
    elif not show:
        detector = load(model, calibration=0)
        plan = detector.features_.plan
        delay_s = plan.label_delay_s + plan.label_maturity_s
        delay_s = delay_s if delay_days is None else delay_days * DAY
        url = store or default_store_url(model)
        known = asyncio.run(_collect_labels(detector, url, delay_s, not reported_only))
        columns = (known.beliefs, known.labels, known.offsets, known.external)
        updated = detector.recalibrate(*columns, keep=keep)
        n_rows, n_frauds = len(known.labels), int(known.labels.sum())
        n_genuine = n_rows - n_frauds
        if min(n_frauds, n_genuine) < MIN_OUTCOMES:
            found = f"{n_frauds:,} frauds and {n_genuine:,} genuine transactions"
            echo(f"note: {found} are too few for exact shares", err=True)
        if dry_run and as_json:
            shares = dict(enumerate(updated.regimes.mean_rates.tolist()))
            counts = {"n_rows": n_rows, "n_frauds": n_frauds, "fraud_rates": shares}
            echo_json(counts)
            return
        if dry_run:
            echo(f"{n_rows:,} labels, {n_frauds:,} frauds; not saved")
            echo(updated.regimes.describe())
            return
        metadata = bundle.CalibrationMetadata(time.time(), n_rows, n_frauds, keep)
        bundle.save_calibration(model, updated.calibration_, updated.digest_, metadata)
    calibrations = bundle.list_calibrations(model)
    if as_json:
        echo_json({"calibrations": [asdict(one) for one in calibrations]})
        return
    for one in calibrations:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created or 0.0))
        echo(
            f"{'*' if one.is_current else ' '} {one.number:>4}  "
            f"{'as fitted' if one.created is None else created}  "
            f"{one.n_rows:,} labels, {one.n_frauds:,} frauds"
            f"{'' if one.is_usable else '  (of another model)'}"
        )
    if not show:
        echo(load(model).regimes.describe())


async def _collect_labels(detector: Detector, url: str, delay_s: float, unreported: bool) -> Any:
    from turncoat.serving.maintenance import collect_labeled_scores

    async with open_store(url) as store:
        return await collect_labeled_scores(store, detector, time.time(), delay_s, unreported)


def erase(
    names: Annotated[list[str], Argument(metavar="NAME", help="Customers, as in responses.")],
    store: Annotated[str, Option(help=f"Store of the service: {STORE_KINDS}.")],
    pseudonymise: Pseudonymise = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove customers from a store.

    Their records and every log entry they are in are deleted for good. The service may keep
    running; it treats these customers as new. Run an interrupted erasure again to finish it.

    Examples:
    `turncoat erase c17 --store sqlite:///detector-beliefs.sqlite`
    `turncoat erase c17 c18 --store redis://127.0.0.1:6379/0 --pseudonymise --yes`
    """
    pseudonyms = load_pseudonyms(pseudonymise)
    rename = str if pseudonyms is None else pseudonyms.pseudonymise
    stored_names = {name: rename(name) for name in names}
    listed = ", ".join(stored_names)
    if not yes:
        confirm(f"Erase {listed} from {store} for ever?", abort=True, err=True)
    found = asyncio.run(_erase(stored_names, store))
    if not any(had_record or n_entries for had_record, n_entries in found.values()):
        hint = "" if pseudonymise else ", or use --pseudonymise if the service does"
        message = f"the store {store} has nothing of {listed}. Give names as responses show them"
        raise DataError(f"{message}{hint}")
    if as_json:
        erased = {name: {"record": one[0], "log_entries": one[1]} for name, one in found.items()}
        echo_json({"erased": erased})
        return
    for name, (had_record, n_entries) in found.items():
        record = "the record" if had_record else "no record"
        entries = "entry" if n_entries == 1 else "entries"
        done = f"{record} and {n_entries:,} log {entries} erased"
        echo(f"{name}: {done if had_record or n_entries else 'nothing was stored'}")


async def _erase(stored_names: dict[str, str], url: str) -> dict[str, tuple[bool, int]]:
    """Return of each customer whether there was a record, and the number of log entries."""
    from turncoat.serving.maintenance import erase_customer

    async with open_store(url) as store:
        return {
            name: await erase_customer(store, stored_name)
            for name, stored_name in stored_names.items()
        }


def new_key(
    name: Annotated[str, Argument(help="Name of the key's owner.")],
    scopes: Annotated[str, Option(help="Any of score, read, label.")] = "score",
    keys: Annotated[Path | None, Option(help="File for the hash. Default: print it.")] = None,
    as_json: Json = False,
) -> None:
    """Create an API key. It is shown once; only its hash is kept.

    Examples:
    `turncoat new-key gateway --scopes score --keys keys.txt`
    `turncoat new-key console --scopes read,label --keys keys.txt`
    """
    from turncoat.serving.auth import create_key, parse_keys
    from turncoat.storage import replace_file

    secret, key = create_key(name, scopes.split(","))
    if keys is not None:
        text = keys.read_text() if keys.exists() else ""
        if name in {one.name for one in parse_keys(text, str(keys))}:
            remedy = "Use another name, or remove its line"
            raise ConfigError(f"{keys} has a key {name!r} already. {remedy}")
        separator = "" if not text or text.endswith("\n") else "\n"
        try:
            replace_file(keys.resolve(), f"{text}{separator}{key}\n".encode(), mode=0o600)
        except OSError as problem:
            raise ConfigError(f"{keys} cannot be written: {problem.strerror}") from problem
    if as_json:
        echo_json({"key": secret, "line": str(key), "keys": keys and str(keys)})
    elif keys is None:
        echo(f"key, for its owner:      {secret}\nline for the keys file:  {key}")
    else:
        echo(f"key, for its owner:  {secret}\nits hash was added to {keys}")
