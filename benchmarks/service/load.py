"""A load client: keeps connections busy with prepared requests, each sent once, then ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop


class _Connection(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next."""

    def __init__(
        self,
        requests: Iterator[bytes],
        latencies: list[float],
        statuses: dict[str, int],
        done: asyncio.Future[None],
    ) -> None:
        self.requests, self.latencies, self.statuses, self.done = (
            requests,
            latencies,
            statuses,
            done,
        )
        self.received, self.wanted = b"", -1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._next()

    def _next(self) -> None:
        request = next(self.requests, None)
        if request is None:
            self.transport.close()
            return
        self.received, self.wanted = b"", -1
        self.sent = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.wanted < 0:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.received[:end].lower()
            at = head.index(b"content-length:") + 15
            self.wanted = end + 4 + int(head[at:].split(b"\r\n", 1)[0])
        if len(self.received) >= self.wanted:
            self.latencies.append(time.perf_counter() - self.sent)
            status = self.received[9:12].decode()
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def run(port: int, requests: list[bytes], connections: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    queue = iter(requests)
    latencies: list[float] = []
    statuses: dict[str, int] = {}
    endings = [loop.create_future() for _ in range(connections)]
    began = time.perf_counter()
    for done in endings:
        await loop.create_connection(
            lambda done=done: _Connection(queue, latencies, statuses, done), "127.0.0.1", port
        )
    await asyncio.wait_for(asyncio.gather(*endings), 300)
    seconds = time.perf_counter() - began
    latencies.sort()
    return {
        "per_second": len(latencies) / seconds,
        "p50_ms": 1e3 * latencies[len(latencies) // 2],
        "p99_ms": 1e3 * latencies[int(len(latencies) * 0.99)],
        "statuses": statuses,
    }


def main() -> None:
    port, connections, first, last = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    requests = msgspec.msgpack.decode(Path(sys.argv[3]).read_bytes(), type=list[bytes])[first:last]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(msgspec.json.encode(runner.run(run(port, requests, connections))).decode())


if __name__ == "__main__":
    main()
