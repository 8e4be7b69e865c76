"""A Redis server for tests, on loopback, that can be killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

START_TIMEOUT_S = 20.0


class RedisServer:
    """A server on one port and folder. Writes that it confirmed survive `stop` and `start`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.socket = folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "dir": self.folder,
            "appendonly": "yes",
            "save": "",
        }
        command = [
            "redis-server",
            *(text for name, value in settings.items() for text in (f"--{name}", str(value))),
        ]
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._responds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(
                    f"redis-server did not start: {(self.folder / 'output').read_text()}"
                )
            time.sleep(0.02)

    def _responds(self) -> bool:
        try:
            return bool(self.command("PING"))
        except redis.RedisError:
            return False

    def stop(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Keep connections open but stop replying."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def command(self, *args: Any, password: str | None = None) -> Any:
        """Send a command on a connection of its own; return the reply."""
        with redis.Redis(
            port=self.port, host="127.0.0.1", password=password, socket_timeout=5.0, retry=None
        ) as client:
            return client.execute_command(*args)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """Run a server; skip the test if Redis is not installed."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with tempfile.TemporaryDirectory(
        prefix="redis-"
    ) as folder:  # short: a socket's path may have 100 characters or so
        server = RedisServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
