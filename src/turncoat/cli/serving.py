"""`turncoat serve`, `replay`, `recalibrate`, `erase` and `new-key`: a detector in production."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from typer import Argument, Option

from turncoat.errors import ConfigError

if TYPE_CHECKING:
    from turncoat import Detector
    from turncoat.data.transactions import Transactions
    from turncoat.serving.decoding import Pseudonymiser
    from turncoat.serving.stores import Store

DAY = 86400.0
_STORE_HELP = (
    "`sqlite:///FILE` or `redis://HOST:PORT/DB`; by default the SQLite file MODEL-beliefs.sqlite."
)
_PSEUDONYM_HELP = "Store customers by a hash keyed with TURNCOAT_PSEUDONYM_KEY."


class LatePolicy(StrEnum):
    """What happens to a transaction older than the belief."""

    KEEP = "keep"
    APPLY = "apply"
    REFUSE = "refuse"


class LogFormat(StrEnum):
    """Format of the service's log."""

    TEXT = "text"
    JSON = "json"


def _check_extra() -> None:
    """Raise a ConfigError if the server's libraries are not installed."""
    for name in ("granian", "prometheus_client", "starlette"):
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install 'turncoat[serve]'")


def serve(
    model: Annotated[Path, Argument(help="Folder written by `turncoat fit` or by a study.")],
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    create_store: Annotated[
        bool, Option("--create-store", help="Create the SQLite file of --store if it is missing.")
    ] = False,
    host: Annotated[
        str, Option(help="Needs --keys unless it is a loopback address.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535)] = 8000,
    workers: Annotated[int, Option(min=1, help="Processes that share port and store.")] = 1,
    keys: Annotated[
        Path | None,
        Option(help="File of API keys (`turncoat new-key`), added to TURNCOAT_API_KEYS."),
    ] = None,
    late: Annotated[
        LatePolicy,
        Option(help="Transaction older than the belief: score only, also update, or refuse."),
    ] = LatePolicy.KEEP,
    expect_labels: Annotated[
        bool, Option(help="Frauds will be reported to /v1/labels; the unreported count as genuine.")
    ] = True,
    labels_update_belief: Annotated[
        bool, Option(help="Condition the belief on the label of a customer's latest transaction.")
    ] = True,
    pseudonymise: Annotated[bool, Option("--pseudonymise", help=_PSEUDONYM_HELP)] = False,
    reasons: Annotated[
        int, Option(min=0, help="Number of reasons in a response; the rest are summed.")
    ] = 4,
    retention_days: Annotated[
        float, Option(min=0, help="How long log entries are kept; 0 keeps them for ever.")
    ] = 30.0,
    max_future_s: Annotated[
        float, Option(min=0, help="How far ahead of the clock a transaction's time may be.")
    ] = 86400.0,
    rate_limit_per_s: Annotated[
        float, Option(min=0, help="Requests per second of each caller; 0 is no limit.")
    ] = 0.0,
    max_body_bytes: Annotated[int, Option(min=1024, help="Maximum size of one transaction.")] = 1024
    * 1024,
    max_batch_lines: Annotated[int, Option(min=1, help="Maximum lines of one batch.")] = 100_000,
    max_connections: Annotated[
        int, Option(min=1, help="Connections served at once by each worker.")
    ] = 1000,
    request_timeout_s: Annotated[
        float, Option(min=0.01, help="Deadline of a request; after it the answer is 503.")
    ] = 2.0,
    client_timeout_s: Annotated[
        float, Option(min=0.1, help="Time a client may take to send a body.")
    ] = 10.0,
    idle_timeout_s: Annotated[
        float, Option(min=0.1, help="Time until the headers of a connection's next request.")
    ] = 10.0,
    reload_interval_s: Annotated[
        float, Option(min=0, help="Time between checks for a new model; 0 never checks.")
    ] = 2.0,
    log_format: Annotated[LogFormat, Option(help="Lines of text or of JSON.")] = LogFormat.TEXT,
) -> None:
    """Score transactions over HTTP. Every customer's belief is in a store.

    Examples:

    `turncoat serve detector/`

    `turncoat serve detector/ --store redis://127.0.0.1:6379/0 --workers 2`

    `turncoat serve detector/ --host 0.0.0.0 --keys keys.txt --rate-limit-per-s 500`
    """
    _check_extra()
    from turncoat.serving.server import serve as run
    from turncoat.serving.settings import ServiceSettings, default_store_url

    run(
        ServiceSettings(
            model_path=str(model),
            store_url=store or default_store_url(model),
            create_store=create_store or not store or store.startswith("memory:"),
            host=host,
            port=port,
            workers=workers,
            keys_file=None if keys is None else str(keys),
            late_policy=late.value,
            expect_labels=expect_labels,
            labels_update_belief=labels_update_belief,
            pseudonymise=pseudonymise,
            n_reasons=reasons,
            retention_days=retention_days,
            max_future_s=max_future_s,
            rate_limit_per_s=rate_limit_per_s,
            max_body_bytes=max_body_bytes,
            max_batch_lines=max_batch_lines,
            max_connections=max_connections,
            request_timeout_s=request_timeout_s,
            client_timeout_s=client_timeout_s,
            idle_timeout_s=idle_timeout_s,
            reload_interval_s=reload_interval_s,
            log_format=log_format.value,
        )
    )


def replay(
    model: Annotated[Path, Argument(help="Folder written by `turncoat fit`.")],
    data: Annotated[Path, Argument(help="History of the same schema; labels may be missing.")],
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    log: Annotated[
        bool, Option(help="Log the transactions, for late arrivals and for rebuilding beliefs.")
    ] = True,
    pseudonymise: Annotated[bool, Option("--pseudonymise", help=_PSEUDONYM_HELP)] = False,
    as_json: Annotated[bool, Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Fill a store with history. Transactions count in time order; a second run resumes a first.

    Examples:

    `turncoat replay detector/ history.csv`

    `turncoat replay detector/ history.parquet --store redis://127.0.0.1:6379/0 --no-log`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.serving.settings import default_store_url

    pseudonyms = _load_pseudonyms(pseudonymise)
    detector = load(model)
    transactions = read_for_scoring(data, detector.features_.plan.schema)
    url = store or default_store_url(model)
    if url.startswith("memory:"):
        raise ConfigError("a store in memory ends with the replay. Use a SQLite file or Redis")
    try:
        counts = asyncio.run(_replay(detector, transactions, url, log, pseudonyms))
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to resume", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(counts))
        return
    typer.echo(
        f"{counts['scored']:,} transactions replayed ({counts['done_before']:,} before), "
        f"{counts['duplicates']:,} duplicates, {counts['late']:,} late (beliefs unchanged), "
        f"{counts['refused']:,} refused"
    )
    if counts["refused"]:
        typer.echo(f"first refusal: {counts['first_refusal']}")


async def _replay(
    detector: Detector,
    transactions: Transactions,
    url: str,
    log: bool,
    pseudonyms: Pseudonymiser | None,
) -> dict[str, Any]:
    """Return how many transactions were scored, duplicate, late and refused."""
    from turncoat.serving.maintenance import count_replayed
    from turncoat.serving.maintenance import replay as run
    from turncoat.serving.responses import ScoredResponse
    from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

    async with _open_store(url, create=True) as store:
        updater = BeliefUpdater(store, UpdatePolicy(logs=log, n_reasons=0))
        before = await count_replayed(updater, detector, transactions, pseudonyms)
        counts: dict[str, Any] = dict.fromkeys(("scored", "duplicates", "late", "refused"), 0)
        counts |= {"done_before": before, "first_refusal": None}
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("replaying", total=transactions.n_rows, completed=before)
            async for rows, responses in run(updater, detector, transactions, pseudonyms):
                for one in responses:
                    if not isinstance(one, ScoredResponse):
                        counts["refused"] += 1
                        counts["first_refusal"] = counts["first_refusal"] or str(one)
                        continue
                    kind = "duplicates" if one.duplicate else "late" if one.late else "scored"
                    counts[kind] += 1
                progress.advance(bar, len(rows))
        return counts


def recalibrate(
    model: Annotated[Path, Argument(help="Folder of the model in service.")],
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    keep: Annotated[
        float, Option(min=0.0, max=1.0, help="Weight of the calibration at fit; 0 forgets it.")
    ] = 1.0,
    delay_days: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Age at which unreported transactions count as genuine; younger ones are left "
            "out. Default: the label delay.",
        ),
    ] = None,
    reported_only: Annotated[
        bool, Option("--reported-only", help="Use reported labels only, genuine ones included.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the new fraud shares and change nothing.")
    ] = False,
    use: Annotated[
        int | None, Option(min=0, help="Switch to an earlier calibration; 0 is the one at fit.")
    ] = None,
    show: Annotated[bool, Option("--list", help="List the calibrations.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Update the regimes' fraud shares with reported labels. Nothing is refitted.

    A running service loads the new calibration by itself. Earlier ones are kept.

    Examples:

    `turncoat recalibrate detector/`

    `turncoat recalibrate detector/ --store redis://127.0.0.1:6379/0 --keep 0.5`

    `turncoat recalibrate detector/ --dry-run`

    `turncoat recalibrate detector/ --use 0`
    """
    from turncoat import load
    from turncoat.scoring.bundle import (
        CalibrationMetadata,
        list_calibrations,
        save_calibration,
        use_calibration,
    )
    from turncoat.scoring.regimes import MIN_OUTCOMES
    from turncoat.serving.settings import default_store_url

    if use is not None and dry_run:
        raise ConfigError("--dry-run and --use exclude each other. Use one of them")
    if use is not None:
        use_calibration(model, use)
    elif not show:
        detector = load(model, calibration=0)
        delay_s = detector.features_.plan.label_delay_s if delay_days is None else delay_days * DAY
        url = store or default_store_url(model)
        known = asyncio.run(_collect_labels(detector, url, delay_s, not reported_only))
        updated = detector.recalibrate(
            known.beliefs, known.labels, known.offsets, known.external, keep=keep
        )
        n_frauds = int(known.labels.sum())
        n_genuine = known.n_rows - n_frauds
        if min(n_frauds, n_genuine) < MIN_OUTCOMES:
            found = f"{n_frauds:,} frauds and {n_genuine:,} genuine transactions"
            typer.echo(f"note: {found} are too few for exact shares", err=True)
        if dry_run and as_json:
            shares = dict(enumerate(updated.regimes.mean_rates.tolist()))
            counts = {"n_rows": known.n_rows, "n_frauds": n_frauds, "fraud_shares": shares}
            typer.echo(json.dumps(counts))
            return
        if dry_run:
            typer.echo(f"{known.n_rows:,} labels, {n_frauds:,} frauds; not saved")
            typer.echo(updated.regimes.describe())
            return
        metadata = CalibrationMetadata(time.time(), known.n_rows, n_frauds, keep)
        save_calibration(model, updated.calibration_, updated.digest_, metadata)
    calibrations = list_calibrations(model)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in calibrations]))
        return
    for one in calibrations:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created or 0.0))
        typer.echo(
            f"{'*' if one.is_current else ' '} {one.number:>4}  "
            f"{'as fitted' if one.created is None else created}  "
            f"{one.n_rows:,} labels, {one.n_frauds:,} frauds"
            f"{'' if one.is_usable else '  (of another model)'}"
        )
    if not show:
        typer.echo(load(model).regimes.describe())


async def _collect_labels(detector: Detector, url: str, delay_s: float, unreported: bool) -> Any:
    from turncoat.serving.maintenance import collect_labeled_scores

    async with _open_store(url) as store:
        return await collect_labeled_scores(store, detector, time.time(), delay_s, unreported)


def erase(
    names: Annotated[
        list[str], Argument(metavar="NAME", help="Customers, as responses show them.")
    ],
    store: Annotated[
        str, Option(help="Store of the service: `sqlite:///FILE` or `redis://HOST:PORT/DB`.")
    ],
    pseudonymise: Annotated[bool, Option("--pseudonymise", help=_PSEUDONYM_HELP)] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove customers from a store.

    Their records and every log entry they are in are deleted for good.

    The service may keep running; it treats these customers as new. Run an interrupted erasure
    again to finish it.

    Examples:

    `turncoat erase c17 --store sqlite:///detector-beliefs.sqlite`

    `turncoat erase c17 c18 --store redis://127.0.0.1:6379/0 --pseudonymise --yes`
    """
    pseudonyms = _load_pseudonyms(pseudonymise)
    stored_names = {
        name: name if pseudonyms is None else pseudonyms.pseudonymise(name) for name in names
    }
    listed = ", ".join(stored_names)
    if not yes:
        typer.confirm(f"Erase {listed} from {store} for ever?", abort=True, err=True)
    if not asyncio.run(_erase(stored_names, store)):
        hint = "" if pseudonymise else ", or use --pseudonymise if the service does"
        message = f"the store {store} has nothing of {listed}. Give names as responses show them"
        typer.echo(f"turncoat: {message}{hint}", err=True)
        raise typer.Exit(1)


async def _erase(stored_names: dict[str, str], url: str) -> int:
    """Return the number of customers of whom something was stored."""
    from turncoat.serving.maintenance import erase_customer

    n_found = 0
    async with _open_store(url) as store:
        for name, stored_name in stored_names.items():
            had_record, n_entries = await erase_customer(store, stored_name)
            if had_record or n_entries:
                n_found += 1
                record = "the record" if had_record else "no record"
                typer.echo(f"{name}: {record} and {n_entries:,} log entries erased")
            else:
                typer.echo(f"{name}: nothing was stored")
    return n_found


@asynccontextmanager
async def _open_store(url: str, create: bool = False) -> AsyncIterator[Store]:
    from turncoat.serving.stores import open_store

    store = open_store(url, create=create)
    try:
        yield store
    finally:
        await store.close()


def _load_pseudonyms(pseudonymise: bool) -> Pseudonymiser | None:
    from turncoat.serving.decoding import Pseudonymiser

    return Pseudonymiser.from_environment() if pseudonymise else None


def new_key(
    name: Annotated[str, Argument(help="Name of the key's owner.")],
    scopes: Annotated[str, Option(help="Any of score, read, label.")] = "score",
    keys: Annotated[
        Path | None, Option(help="File to add the hash to; otherwise the line is printed.")
    ] = None,
) -> None:
    """Create an API key. It is shown once; only its hash is kept.

    Examples:

    `turncoat new-key gateway --scopes score --keys keys.txt`

    `turncoat new-key console --scopes read,label --keys keys.txt`
    """
    from turncoat.serving.auth import create_key, parse_keys
    from turncoat.storage import replace_file

    secret, key = create_key(name, scopes.split(","))
    if keys is None:
        typer.echo(f"key, for its owner:      {secret}\nline for the keys file:  {key}")
        return
    text = keys.read_text() if keys.exists() else ""
    if name in {one.name for one in parse_keys(text, str(keys))}:
        raise ConfigError(
            f"{keys} has a key {name!r} already. Use another name, or remove its line"
        )
    separator = "" if not text or text.endswith("\n") else "\n"
    try:
        replace_file(keys.resolve(), f"{text}{separator}{key}\n".encode(), mode=0o600)
    except OSError as problem:
        raise ConfigError(f"{keys} cannot be written: {problem.strerror}") from problem
    typer.echo(f"key, for its owner:  {secret}\nits hash was added to {keys}")
