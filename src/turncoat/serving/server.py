"""Server processes: one parent that watches, and workers that share the port and the store.

The HTTP server is granian. It limits headers, slow senders and connections by its own options; see
docs/decisions/0013-granian-serves-http.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging.config
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from starlette.types import ASGIApp

from turncoat.errors import ConfigError
from turncoat.serving.auth import is_loopback_host, load_keys
from turncoat.serving.middleware import CURRENT_REQUEST_ID
from turncoat.serving.settings import ServiceSettings

_DRAIN_TIMEOUT_S = 30  # for requests in progress at shutdown; then workers are killed
_MAX_HEADER_BYTES = 65_536
_METRICS_BYTES = 16 * 1024 * 1024  # of one worker
_ALLOCATIONS_PER_COLLECTION = 20_000
_log = logging.getLogger("turncoat")


def serve(settings: ServiceSettings, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are finished first.

    `announce` is called with the URL when model and store have been opened.

    Raises a TurncoatError if the service could not work with these settings.
    """
    settings.check()
    if not is_loopback_host(settings.host) and not load_keys(settings.keys_file):
        remedy = "set up API keys (--keys), or serve on 127.0.0.1"
        raise ConfigError(f"host {settings.host} can be reached from other machines: {remedy}")
    address = _find_free_address(settings)
    logging.config.dictConfig(build_log_config(settings.log_format))
    with _share_metrics(settings) as settings, ProcessPoolExecutor(1) as pool:
        pool.submit(_check_startup, settings).result()  # in a process: the parent stays small
        pool.shutdown()
        url = _log_start(settings)
        if announce is not None:
            announce(url)
        is_stopping = multiprocessing.Event()
        server = Granian("turncoat", address, **build_server_options(settings))
        server.on_startup(partial(_announce_shutdown, is_stopping))
        server.serve(target_loader=partial(_load_app, settings, is_stopping), wrap_loader=False)


def build_server_options(settings: ServiceSettings) -> dict[str, Any]:
    """Return the options of granian."""
    timeout_ms = int(1000 * settings.idle_timeout_s)
    limits = HTTP1Settings(header_read_timeout=timeout_ms, max_buffer_size=_MAX_HEADER_BYTES)
    return {
        "port": settings.port,
        "interface": Interfaces.ASGI,
        "workers": settings.workers,
        "http": HTTPModes.http1,
        "websockets": False,
        "backpressure": settings.max_connections,
        "http1_settings": limits,
        "log_level": LogLevels.warning,
        "log_dictconfig": build_log_config(settings.log_format),
        "respawn_failed_workers": True,
        "workers_kill_timeout": _DRAIN_TIMEOUT_S,
    }


def _find_free_address(settings: ServiceSettings) -> str:
    """Return the IP address of the host. Raises a ConfigError if the port is taken."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        problem = f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}"
        raise ConfigError(f"{problem}. Choose another with --port") from error
    return str(address[0])


@contextlib.contextmanager
def _share_metrics(settings: ServiceSettings) -> Iterator[ServiceSettings]:
    """Give several workers a folder for their metrics, in memory where the system has one."""
    if settings.workers == 1:
        yield settings
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parent = os.environ.get("TMPDIR", memory)
    with tempfile.TemporaryDirectory("", "turncoat-", parent, ignore_cleanup_errors=True) as folder:
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:  # or workers would end with SIGBUS
                os.posix_fallocate(probe.fileno(), 0, settings.workers * _METRICS_BYTES)
        except OSError as error:
            problem = f"workers cannot share metrics in {folder}: {error.strerror}"
            remedy = "Free some space, set TMPDIR to another folder, or use one worker"
            raise ConfigError(f"{problem}. {remedy}") from error
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        yield msgspec.structs.replace(settings, metrics_dir=folder)


def _check_startup(settings: ServiceSettings) -> None:
    """Load the model and open the store once, to raise their errors before workers start."""
    from turncoat.serving.registry import ModelRegistry
    from turncoat.serving.stores import open_store

    ModelRegistry(settings)
    asyncio.run(open_store(settings.store_url, create=settings.create_store).close())


def _announce_shutdown(is_stopping: Event) -> None:
    """Set the event at SIGTERM and SIGINT, before the server handles the signal."""

    def announce(handle: Any, *arguments: Any) -> None:
        is_stopping.set()
        handle(*arguments)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(announce, signal.getsignal(number)))


def _load_app(settings: ServiceSettings, is_stopping: Event) -> ASGIApp:
    """Return the application of a worker process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # until granian sets its own handlers
        signal.signal(number, signal.SIG_DFL)
    from turncoat.serving.app import create_app  # after PROMETHEUS_MULTIPROC_DIR is set

    threading.Thread(target=_stop_with_parent, daemon=True).start()
    app = create_app(settings, is_stopping.is_set)
    gc.collect()
    gc.freeze()  # the model stays: do not scan it again
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 50, 100)
    _log.info("worker process %d started", os.getpid())
    return app


def _stop_with_parent() -> None:
    """Stop this worker when its parent process has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _log_start(settings: ServiceSettings) -> str:
    """Log what is served, and return the URL."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    url, store = f"http://{host}:{settings.port}", settings.store_url
    _log.info("%s at %s (see /docs), store %s%s", Path(settings.model_path), url, store, workers)
    return url


class LogFormatter(logging.Formatter):
    """Formats a record as a line of text or, if `as_json` is set, as a JSON object on one line."""

    as_json = False

    def format(self, record: logging.LogRecord) -> str:
        """Return time (UTC), level, message, and request id and traceback if there are any."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{seconds}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line["message"] = record.getMessage()
        if request_id := CURRENT_REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line) if self.as_json else " ".join(line.values())


def build_log_config(log_format: str) -> dict[str, Any]:
    """Return the `logging` configuration of the service and its HTTP server: all to stderr."""
    logger = {"handlers": ["stderr"], "propagate": False}
    levels = {"turncoat": "INFO", "_granian": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": LogFormatter, ".": {"as_json": log_format == "json"}}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {name: {**logger, "level": level} for name, level in levels.items()},
    }
