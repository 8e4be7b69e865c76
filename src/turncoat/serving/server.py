"""Processes: one that serves, or several that share a port and a store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette

from turncoat.errors import ConfigError
from turncoat.serving.app import create_app
from turncoat.serving.auth import load_keys
from turncoat.serving.protocol import PatientProtocol
from turncoat.serving.registry import ModelRegistry
from turncoat.serving.settings import ServiceSettings, export_settings, import_settings
from turncoat.serving.stores import open_store

_DRAIN_SECONDS = 30
_ALLOCATIONS_PER_COLLECTION = 20_000
_log = logging.getLogger("turncoat")


def serve(settings: ServiceSettings) -> None:
    """Serve until told to stop (SIGTERM, SIGINT); requests under way are answered first. Refuses at once what could not work."""
    settings.check()
    if not settings.is_loopback and not load_keys(
        None if settings.keys_file is None else Path(settings.keys_file)
    ):
        raise ConfigError(
            f"host {settings.host} can be reached from other machines: set up API keys (--keys), or serve on 127.0.0.1"
        )
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as problem:
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {problem.strerror}. Choose another with --port"
        ) from problem
    _log_to_stderr()
    if settings.workers == 1:
        app = _prepared(settings)
        _say_where(settings)
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit(0)
        )  # which uvicorn raises again once all is answered
        uvicorn.Server(uvicorn.Config(app, **server_options(settings))).run()
        return
    ModelRegistry(
        settings
    )  # a bundle that cannot be trusted is refused here, not by every worker again and again
    asyncio.run(
        open_store(settings.store_url, create=True).close()
    )  # nor one after the other a store that is none
    _say_where(settings)
    with tempfile.TemporaryDirectory(prefix="turncoat-") as shared:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared
        export_settings(
            msgspec.structs.replace(settings, metrics_dir=shared, parent_pid=os.getpid())
        )
        uvicorn.run(
            "turncoat.serving.server:worker",
            factory=True,
            workers=settings.workers,
            **server_options(settings),
        )


def worker() -> Starlette:
    """The application of a worker process."""
    _log_to_stderr()
    _log.info("worker process %d starts", os.getpid())
    settings = import_settings()
    threading.Thread(target=_end_with, args=(settings.parent_pid,), daemon=True).start()
    return _prepared(settings)


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, be it before this one came so far, as nobody else would."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _prepared(settings: ServiceSettings) -> Starlette:
    PatientProtocol.client_timeout_s = settings.client_timeout_s
    app = create_app(settings)
    gc.collect()
    gc.freeze()  # what is loaded stays, and need not be looked through again and again
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 50, 100)
    return app


def server_options(settings: ServiceSettings) -> dict[str, Any]:
    """How uvicorn is run."""
    return {
        "host": settings.host,
        "port": settings.port,
        "http": PatientProtocol,
        "loop": "auto",
        "ws": "none",
        "lifespan": "on",
        "access_log": False,  # paths hold customers' names
        "log_level": "warning",
        "server_header": False,
        "proxy_headers": False,
        "limit_concurrency": settings.max_connections,
        "timeout_graceful_shutdown": _DRAIN_SECONDS,
    }


def _say_where(settings: ServiceSettings) -> None:
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _log.info(
        "%s at http://%s:%d (see /docs), beliefs in %s%s",
        settings.model_path,
        host,
        settings.port,
        settings.store_url,
        workers,
    )


def _log_to_stderr() -> None:
    if not _log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s turncoat: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
