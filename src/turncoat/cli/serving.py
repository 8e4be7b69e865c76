"""`turncoat serve`, `replay`, `recalibrate`, `erase` and `new-key`: a fitted detector at work."""

from __future__ import annotations

import asyncio
import json
import time
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

_STORE_HELP = (
    "`sqlite:///FILE` or `redis://HOST:PORT/DB`; by default the SQLite file MODEL-beliefs.sqlite."
)


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
    pseudonymise: Annotated[
        bool,
        Option(
            "--pseudonymise", help="Store customers by a hash keyed with TURNCOAT_PSEUDONYM_KEY."
        ),
    ] = False,
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
    model: Annotated[Path, Argument(help="A folder written by `turncoat fit`.")],
    data: Annotated[
        Path,
        Argument(help="The history: a file or folder of the same schema; labels may be missing."),
    ],
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    log: Annotated[
        bool,
        Option(
            help="Keep the transactions in the log too: for late arrivals, and for rebuilding beliefs."
        ),
    ] = True,
    pseudonymise: Annotated[bool, Option("--pseudonymise", help="As in `turncoat serve`.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Warm a store with history. Every transaction counts in the order it happened; a stopped replay goes on where it was.

    Examples:

    `turncoat replay detector/ history.csv`

    `turncoat replay detector/ history.parquet --store redis://127.0.0.1:6379/0 --no-log`
    """
    from turncoat import load
    from turncoat.data import read_for_scoring
    from turncoat.serving.decoding import Pseudonymiser
    from turncoat.serving.settings import default_store_url

    pseudonyms = Pseudonymiser.from_environment() if pseudonymise else None
    detector = load(model)
    transactions = read_for_scoring(data, detector.features_.plan.schema)
    url = store or default_store_url(model)
    if url.startswith("memory:"):
        raise ConfigError(
            "a store in memory is gone when the replay ends. Name a SQLite file or a Redis"
        )
    try:
        done = asyncio.run(_replay(detector, transactions, url, log, pseudonyms))
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(done))
        return
    typer.echo(
        f"{done['scored']:,} transactions replayed ({done['done_before']:,} had been before), {done['duplicates']:,} known already, "
        f"{done['late']:,} late, which move no belief, {done['refused']:,} refused"
    )
    if done["refused"]:
        typer.echo(f"the first refused: {done['first_refusal']}")


async def _replay(
    detector: Detector,
    transactions: Transactions,
    url: str,
    log: bool,
    pseudonyms: Pseudonymiser | None,
) -> dict[str, Any]:
    from turncoat.serving.maintenance import count_replayed
    from turncoat.serving.maintenance import replay as run
    from turncoat.serving.responses import ScoredResponse
    from turncoat.serving.stores import open_store
    from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

    opened = open_store(url, create=True)
    try:
        updater = BeliefUpdater(opened, UpdatePolicy(logs=log, n_reasons=0))
        before = await count_replayed(updater, detector, transactions, pseudonyms)
        done: dict[str, Any] = {
            "scored": 0,
            "duplicates": 0,
            "late": 0,
            "refused": 0,
            "done_before": before,
            "first_refusal": None,
        }
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("replaying", total=transactions.n_rows, completed=before)
            async for rows, given in run(updater, detector, transactions, pseudonyms):
                for one in given:
                    if not isinstance(one, ScoredResponse):
                        done["refused"] += 1
                        done["first_refusal"] = done["first_refusal"] or str(one)
                    else:
                        done[
                            "duplicates" if one.duplicate else "late" if one.late else "scored"
                        ] += 1
                progress.advance(bar, len(rows))
        return done
    finally:
        await opened.close()


def recalibrate(
    model: Annotated[Path, Argument(help="The folder of the model that serves.")],
    store: Annotated[str, Option(help=_STORE_HELP)] = "",
    keep: Annotated[
        float,
        Option(
            min=0.0,
            max=1.0,
            help="Weight of the calibration that the model was fitted with; 0 forgets it.",
        ),
    ] = 1.0,
    delay_days: Annotated[
        float | None,
        Option(
            min=0.0,
            help="After so long what was not reported counts as genuine, and what is younger is left out; by default the label delay.",
        ),
    ] = None,
    reported_only: Annotated[
        bool,
        Option(
            "--reported-only",
            help="Use only what was reported, if that is all transactions of some kind, not just frauds.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the new fraud shares, and change nothing.")
    ] = False,
    use: Annotated[
        int | None,
        Option(
            min=0, help="Switch to an earlier calibration; 0 is the one the model was fitted with."
        ),
    ] = None,
    show: Annotated[bool, Option("--list", help="Show the calibrations there are.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Update the regimes' fraud shares with reported outcomes. Nothing is refitted.

    The new calibration is switched on in one instant; a running service takes it up by itself. Earlier ones are kept.

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
        raise ConfigError(
            "--dry-run shows what would be learnt, which --use does not do. Use one of them"
        )
    if use is not None:
        use_calibration(model, use)
    elif not show:
        detector = load(model, calibration=0)
        delay = (
            detector.features_.plan.label_delay_s if delay_days is None else delay_days * 86400.0
        )
        known = asyncio.run(
            _known(detector, store or default_store_url(model), delay, not reported_only)
        )
        updated = detector.recalibrate(
            known.beliefs, known.labels, known.offsets, known.external, keep=keep
        )
        n_frauds = int(known.labels.sum())
        if min(n_frauds, known.n_rows - n_frauds) < MIN_OUTCOMES:
            typer.echo(
                f"note: {n_frauds:,} frauds and {known.n_rows - n_frauds:,} genuine transactions say little of the shares of either",
                err=True,
            )
        if dry_run and as_json:
            shares = dict(enumerate(updated.regimes.mean_rates.tolist()))
            typer.echo(
                json.dumps({"n_rows": known.n_rows, "n_frauds": n_frauds, "fraud_shares": shares})
            )
            return
        if dry_run:
            typer.echo(
                f"{known.n_rows:,} outcomes, {n_frauds:,} frauds; not saved\n{updated.regimes.describe()}"
            )
            return
        metadata = CalibrationMetadata(time.time(), known.n_rows, n_frauds, keep)
        save_calibration(model, updated.calibration_, updated.digest_, metadata)
    found = list_calibrations(model)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        when = (
            "as fitted"
            if one.created is None
            else time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created))
        )
        of_another = "" if one.is_usable else "  (of another model)"
        typer.echo(
            f"{'*' if one.is_current else ' '} {one.number:>4}  {when}  {one.n_rows:,} outcomes, {one.n_frauds:,} frauds{of_another}"
        )
    if not show:
        typer.echo(load(model).regimes.describe())


async def _known(detector: Detector, url: str, delay: float, unreported: bool) -> Any:
    from turncoat.serving.maintenance import collect_labeled_scores
    from turncoat.serving.stores import open_store

    opened = open_store(url)
    try:
        return await collect_labeled_scores(opened, detector, time.time(), delay, unreported)
    finally:
        await opened.close()


def erase(
    names: Annotated[list[str], Argument(metavar="NAME", help="Customers, as answers show them.")],
    store: Annotated[
        str,
        Option(help="Where the service keeps them: `sqlite:///FILE` or `redis://HOST:PORT/DB`."),
    ],
    pseudonymise: Annotated[
        bool,
        Option(
            "--pseudonymise",
            help="As in `turncoat serve`: they are stored by a hash keyed with TURNCOAT_PSEUDONYM_KEY.",
        ),
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove customers from a store. Their records and every log entry that they are in go; that cannot be undone.

    A service may go on with the store meanwhile; these customers are new to it then. An erasure that was stopped is finished by a second.

    Examples:

    `turncoat erase c17 --store sqlite:///detector-beliefs.sqlite`

    `turncoat erase c17 c18 --store redis://127.0.0.1:6379/0 --pseudonymise --yes`
    """
    from turncoat.serving.decoding import Pseudonymiser

    pseudonyms = Pseudonymiser.from_environment() if pseudonymise else None
    stored_as = {
        name: name if pseudonyms is None else pseudonyms.pseudonymise(name) for name in names
    }
    if not yes:
        typer.confirm(f"Erase {', '.join(stored_as)} from {store} for ever?", abort=True, err=True)
    if not asyncio.run(_erase(stored_as, store)):
        hint = (
            "Give names as answers show them"
            if pseudonymise
            else "Give names as answers show them, or --pseudonymise if the service has it"
        )
        typer.echo(
            f"turncoat: the store {store} has nothing of {', '.join(stored_as)}. {hint}", err=True
        )
        raise typer.Exit(1)


async def _erase(stored_as: dict[str, str], url: str) -> int:
    """How many customers something was stored of."""
    from turncoat.serving.maintenance import erase_customer
    from turncoat.serving.stores import open_store

    n_found = 0
    opened = open_store(url)
    try:
        for name, stored in stored_as.items():
            had_record, n_entries = await erase_customer(opened, stored)
            if had_record or n_entries:
                n_found += 1
                typer.echo(
                    f"{name}: {'the record' if had_record else 'no record'} and {n_entries:,} log entries erased"
                )
            else:
                typer.echo(f"{name}: nothing was stored")
        return n_found
    finally:
        await opened.close()


def new_key(
    name: Annotated[str, Argument(help="Whose key it is.")],
    scopes: Annotated[str, Option(help="What it may do: of score, read, label.")] = "score",
    keys: Annotated[
        Path | None, Option(help="File to add its hash to; otherwise the line is printed.")
    ] = None,
) -> None:
    """Make an API key. It is shown once; only its hash is kept.

    Examples:

    `turncoat new-key gateway --scopes score --keys keys.txt`

    `turncoat new-key console --scopes read,label --keys keys.txt`
    """
    from turncoat.serving.auth import create_key, parse_keys

    secret, key = create_key(name, scopes.split(","))
    if (
        keys is not None
        and keys.exists()
        and name in {one.name for one in parse_keys(keys.read_text(), str(keys))}
    ):
        raise ConfigError(
            f"{keys} has a key {name!r} already. Choose another name, or remove its line"
        )
    if keys is None:
        typer.echo(
            f"the key, to be kept by its owner:  {secret}\nthe line for the keys file:         {key}"
        )
        return
    text = keys.read_text() if keys.exists() else ""
    text = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{key}\n"
    parse_keys(text, str(keys))
    from turncoat.storage import replace_file

    try:
        replace_file(keys.resolve(), text.encode(), mode=0o600)
    except OSError as problem:
        raise ConfigError(f"{keys} cannot be written: {problem.strerror}") from problem
    typer.echo(f"the key, to be kept by its owner:  {secret}\nits hash was added to {keys}")
