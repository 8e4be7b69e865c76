"""Connect to a Dask cluster and wait for its results, with clear errors and bounded waits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from turncoat.errors import ClusterError, ConfigError
from turncoat.progress import progress_console

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_TIMEOUT_S = 15.0
_ANSWER_TIMEOUT_S = 30.0  # for a scheduler, or a first worker, that has gone silent
_POLL_S = 2.0
_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
_REMOTE = re.compile(r"(tcp|tls)://\S+")


@contextmanager
def connect(cluster: Client | str, progress: bool | None = None) -> Iterator[Client]:
    """Yield a client of a cluster, and close what was opened for it.

    `cluster` is a `distributed.Client`, which stays open, the address of a scheduler such as
    "tcp://10.0.0.5:8786", or "local:4" for four worker processes on this machine.
    """
    from_dask = _import_dask()
    if isinstance(cluster, from_dask.Client):
        if cluster.asynchronous:
            raise ConfigError("the Client is asynchronous. Give one with asynchronous=False")
        with _translate_errors(cluster):
            _check_health(cluster)
            yield cluster
        return
    local, remote = _LOCAL.fullmatch(str(cluster)), _REMOTE.fullmatch(str(cluster))
    if local is None and remote is None:
        rule = 'it must be a Client, an address such as "tcp://10.0.0.5:8786", or "local:4"'
        raise ConfigError(f"cluster is {cluster!r}; {rule}")
    with ExitStack() as stack:
        address: Any = cluster
        if local is not None:
            address = stack.enter_context(
                from_dask.LocalCluster(
                    n_workers=int(local[1]),
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.ERROR,  # what matters is raised
                )
            )
        try:
            client = from_dask.Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
        except (OSError, TimeoutError) as problem:
            remedy = "Start one with `dask scheduler`, or check the address and the firewall"
            raise ClusterError(f"{cluster}: no scheduler answers there. {remedy}") from problem
        stack.enter_context(client)
        console = progress_console(progress)
        console.print(f"Dask dashboard (needs bokeh): {client.dashboard_link}")
        with _translate_errors(client):
            _check_health(client)
            yield client


def submit(
    client: Client, work: Callable[..., Any], names: Sequence[str], parts: Sequence[Any], *args: Any
) -> list[Future]:
    """Start `work(part, *args)` for every part; returns futures in the order of the parts.

    Everything a task needs is an argument, so Dask can run it again after a worker has died. The
    keys have the parts' names, for messages. `Client.map` would keep large keyword arguments under
    their bare name, which tasks of the next call could find; hence positional ones.
    """
    run = uuid4().hex
    keys = [f"{work.__name__}-{name}-{run}" for name in names]
    repeated = [[arg] * len(parts) for arg in args]
    with _translate_errors(client):
        return list(client.map(work, list(parts), *repeated, key=keys, pure=False))


def gather(
    client: Client, futures: Sequence[Future], report: Callable[[int], None] | None = None
) -> list[Any]:
    """Return the results in order, or raise the first error; `report` gets how many are done."""
    from_dask, wanted = _import_dask(), list(futures)
    ask = partial(client.gather, wanted, asynchronous=True)
    with _translate_errors(client):
        while True:
            try:
                with client.as_current():
                    from_dask.wait(wanted, timeout=_POLL_S)
                # Results of a worker that has just died are computed again, which takes its time.
                results = client.sync(ask, callback_timeout=_ANSWER_TIMEOUT_S)
            except TimeoutError:
                for future in wanted:
                    if future.status == "error":
                        future.result()
                if report is not None:
                    report(sum(future.done() for future in wanted))
                _check_health(client)
            else:
                return list(results)


def _check_health(client: Client) -> None:
    """Raise a ClusterError for a scheduler that is silent or that no worker reaches."""
    if client.scheduler is None or client.status == "closed":
        raise ClusterError(_describe_loss(client))
    try:
        info = client.sync(client.scheduler.identity, callback_timeout=_ANSWER_TIMEOUT_S)
    except (OSError, TimeoutError) as problem:
        raise ClusterError(_describe_loss(client)) from problem
    if info["workers"]:
        return
    try:
        client.wait_for_workers(1, timeout=_ANSWER_TIMEOUT_S)
    except TimeoutError as problem:
        reason = f"no worker has connected for {_ANSWER_TIMEOUT_S:.0f} seconds"
        remedy = "Start workers with `dask worker`, and fit again"
        raise ClusterError(f"{_find_address(client)}: {reason}. {remedy}") from problem


@contextmanager
def _translate_errors(client: Client) -> Iterator[None]:
    """Raise Dask's errors as ours."""
    from_dask, address = _import_dask(), _find_address(client)
    try:
        yield
    except from_dask.KilledWorker as problem:
        part = str(problem.task).partition("-")[2].rpartition("-")[0]
        reason = f"workers died again and again at {part}"
        remedy = "Usually memory: make more and smaller parts, or give workers more memory"
        raise ClusterError(f"{address}: {reason}. {remedy}") from problem
    except (from_dask.CancelledError, from_dask.comm.CommClosedError) as problem:
        raise ClusterError(_describe_loss(client)) from problem


def _describe_loss(client: Client) -> str:
    reason = "the scheduler went away or does not answer"
    return f"{_find_address(client)}: {reason}. See its log, start it again, and fit again"


def _find_address(client: Client) -> str:
    return "the cluster" if client.scheduler is None else str(client.scheduler.address)


def _import_dask() -> Any:
    """The package `distributed`; a ConfigError with the install command if it is missing."""
    try:
        import distributed
    except ImportError as problem:
        remedy = f"pip install turncoat[cluster] ({problem})"
        raise ConfigError(f"fitting on a cluster needs the extra: {remedy}") from problem
    return distributed
