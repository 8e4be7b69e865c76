"""The service as users run it: a process on a free port of loopback that ends with the test."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTS_WITHIN = 60.0  # seconds


class Server:
    """One server process after the other, on the same port."""

    def __init__(self, model: Path, store: str, *options: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self.command = [
            sys.executable,
            "-m",
            "turncoat",
            "serve",
            str(model),
            "--store",
            store,
            "--create-store",
            "--port",
            str(self.port),
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.log = model.parent / "server.log"

    def start(self, **more: Any) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **more,
            )
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start: {self.log.read_text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """With all its workers, as a power cut would."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """As an operator would; says the exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(60)
        self.process = None
        return status

    def ask(
        self, method: str, path: str, body: Any = None, timeout: float = 30.0
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, answer and headers of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return exchange(connection, method, path, body)
        finally:
            connection.close()


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
) -> tuple[int, Any, dict[str, str]]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        method, path, data, {} if data is None else {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    text = response.read()
    is_json = response.headers.get_content_type() == "application/json"
    return (
        response.status,
        json.loads(text) if is_json else text,
        {name.lower(): value for name, value in response.headers.items()},
    )


@contextlib.contextmanager
def running(model: Path, store: str, *options: str, **more: Any) -> Iterator[Server]:
    server = Server(model, store, *options)
    try:
        server.start(**more)
        yield server
    finally:
        server.kill()
