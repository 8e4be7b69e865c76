"""The batch endpoints: NDJSON in, NDJSON out, processed and answered in order while lines arrive.

Each batch runs two tasks: one reads and submits lines, one sends their responses. The first may run
ahead, so that a client may send its whole batch before it reads; all batches of a process together
hold `_MAX_BUFFERED_LINES`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from turncoat.errors import TurncoatError
from turncoat.serving import middleware
from turncoat.serving.auth import RateLimiter
from turncoat.serving.batcher import RETRYABLE_ERRORS, Item, OutOfOrderError, ShuttingDownError
from turncoat.serving.responses import ErrorResponse, ScoredResponse, encode_json
from turncoat.serving.service import Service
from turncoat.serving.updater import Response

_MAX_IN_FLIGHT = 64  # lines of a batch that are processed at the same time
_MAX_BUFFERED_LINES = 100_000  # about 128 MB of responses that clients have not read
_MAX_CHUNK_BYTES = 65_536
_log = logging.getLogger("turncoat")


@dataclass
class BatchEndpoint(ABC):
    """Serves batches. Each line is answered by a line, in order; a line in error by its error."""

    service: Service
    rate_limiter: RateLimiter
    is_stopping: Callable[[], bool]
    n_buffered_lines: int = 0  # of all batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one batch."""
        # The client may still be sending when the response ends: do not reuse the connection.
        headers = [(b"content-type", b"application/x-ndjson"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _Batch(self, scope["caller"], receive, send).run()

    @abstractmethod
    async def decode(self, line: bytes) -> Item:
        """Return the request of a line."""


class ScoreBatchEndpoint(BatchEndpoint):
    """Score many transactions, one JSON object per line.

    Each line is answered by a line, in order; a line in error by its error.
    """

    async def decode(self, line: bytes) -> Item:
        """Return the transaction of a line."""
        return self.service.registry.current.decoder.decode(line)


class LabelBatchEndpoint(BatchEndpoint):
    """Report many labels, one JSON object per line.

    Each line is answered by a line, in order; a line in error by its error.
    """

    async def decode(self, line: bytes) -> Item:
        """Return the label of a line."""
        return await self.service.decode_label(line)


class _PendingLine(NamedTuple):
    """A line whose response is due."""

    number: int
    result: asyncio.Future[Response] | Exception
    customer: str | None = None
    deadline: float = 0.0  # by the loop's clock


class _Batch:
    """One batch request."""

    def __init__(self, endpoint: BatchEndpoint, caller: str, receive: Receive, send: Send) -> None:
        self._endpoint, self._caller, self._receive, self._send = endpoint, caller, receive, send
        self._service, self._settings = endpoint.service, endpoint.service.settings
        self._loop, self._n_lines = asyncio.get_running_loop(), 0
        self._last_received, self._stop_at = self._loop.time(), math.inf
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._pending: asyncio.Queue[_PendingLine | None] = asyncio.Queue()
        self._latest: dict[str, asyncio.Future[Response]] = {}  # unanswered, by customer
        self._to_resend: set[str] = set()  # customers with a line that was not written

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_lines())
                await self._send_responses()
                reader.cancel()
        except* ClientDisconnect:
            pass
        finally:
            while not self._pending.empty():  # nobody waits for these
                line = await self._take()
                if line is not None and isinstance(line.result, asyncio.Future):
                    line.result.cancel() or line.result.cancelled() or line.result.exception()

    async def _read_lines(self) -> None:
        """Submit every line. Then wait for the client to leave, to stop work nobody waits for."""
        try:
            await self._submit_lines()
        except (TurncoatError, HTTPException) as error:  # ends the batch
            self._put(_PendingLine(self._n_lines, error))
        self._put(None)
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def _submit_lines(self) -> None:
        rest, has_more = b"", True
        while has_more:
            try:
                async with asyncio.timeout(self._settings.client_timeout_s):
                    piece, has_more = await middleware.receive_body(self._receive)
            except TimeoutError:
                self._n_lines += 1
                message = f"nothing came for {self._settings.client_timeout_s:g} seconds"
                raise HTTPException(408, message) from None
            self._last_received = self._loop.time()
            *lines, rest = (rest + piece).split(b"\n")
            if not has_more and rest:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._n_lines += 1
                if line.strip():
                    await self._wait_for_turn()
                    self._put(await self._submit(line))
            if has_more:
                self._check_shutdown()
            if len(rest) > self._settings.max_body_bytes:
                self._n_lines += 1
                middleware.check_size(len(rest), self._settings, "a line")

    async def _wait_for_turn(self) -> None:
        """Check the number of lines; wait for the rate limit and for room in the buffer."""
        max_lines = self._settings.max_batch_lines
        if self._n_lines > max_lines:
            raise HTTPException(413, f"the batch has more than {max_lines:,} lines")
        while wait_s := self._endpoint.rate_limiter.acquire(self._caller):
            self._check_shutdown()
            await asyncio.sleep(min(wait_s, 0.5))
        while self._endpoint.n_buffered_lines >= _MAX_BUFFERED_LINES and self._pending.qsize():
            await asyncio.sleep(0.01)
        await self._in_flight.acquire()

    def _check_shutdown(self) -> None:
        """Raise a ShuttingDownError `request_timeout_s` after the server was told to stop."""
        now = self._loop.time()
        if self._endpoint.is_stopping():
            self._stop_at = min(self._stop_at, now + self._settings.request_timeout_s)
        if now >= self._stop_at:
            raise ShuttingDownError

    async def _submit(self, line: bytes) -> _PendingLine:
        """Queue a line's request behind the customer's earlier lines."""
        customer = None
        try:
            middleware.check_size(len(line), self._settings, "a line")
            request = await self._endpoint.decode(line)
            customer = request.customer
            if customer in self._to_resend:
                raise OutOfOrderError
            future = self._service.batcher.submit(request, self._latest.get(customer))
        except (TurncoatError, HTTPException) as error:
            self._in_flight.release()
            if customer is not None and isinstance(error, RETRYABLE_ERRORS):
                self._to_resend.add(customer)
            return _PendingLine(self._n_lines, error, customer)
        future.add_done_callback(lambda _: self._in_flight.release())
        self._latest[customer] = future
        deadline = self._loop.time() + self._settings.request_timeout_s
        return _PendingLine(self._n_lines, future, customer, deadline)

    def _put(self, line: _PendingLine | None) -> None:
        self._pending.put_nowait(line)
        self._endpoint.n_buffered_lines += 1

    async def _take(self) -> _PendingLine | None:
        line = await self._pending.get()
        self._endpoint.n_buffered_lines -= 1
        return line

    async def _send_responses(self) -> None:
        """Send the responses in the order of the lines, several in a chunk."""
        chunk = bytearray()
        while (line := await self._take()) is not None:
            chunk += await self._wait_for_response(line) + b"\n"
            if self._pending.empty() or len(chunk) > _MAX_CHUNK_BYTES:
                await self._send_chunk(bytes(chunk))
                chunk.clear()
        await self._send_chunk(bytes(chunk), has_more=False)

    async def _wait_for_response(self, line: _PendingLine) -> bytes:
        """Return the response of a line, or its error."""
        try:
            if isinstance(line.result, Exception):
                raise line.result
            async with asyncio.timeout_at(line.deadline):
                found = await line.result
                return found.body if isinstance(found, ScoredResponse) else encode_json(found)
        except TimeoutError:
            error: Exception = middleware.DeadlineError(self._settings.request_timeout_s)
        except Exception as problem:
            error = problem
        finally:
            if line.customer is not None and self._latest.get(line.customer) is line.result:
                del self._latest[line.customer]
        if line.customer is not None and isinstance(error, RETRYABLE_ERRORS):
            self._to_resend.add(line.customer)
        middleware.log_error(error)
        error.__traceback__ = None  # a cycle with its frames would keep the connection open
        detail = middleware.describe_error(error)[1]
        self._service.metrics.count_error(detail.kind)
        return encode_json(ErrorResponse(detail, line=line.number))

    async def _send_chunk(self, chunk: bytes, has_more: bool = True) -> None:
        """Send a chunk. Give up on a client that neither reads nor sends for `client_timeout_s`."""
        message = {"type": "http.response.body", "body": chunk, "more_body": has_more}
        sending = asyncio.ensure_future(self._send(message))
        timeout_s = self._settings.client_timeout_s
        try:
            while not (await asyncio.wait({sending}, timeout=timeout_s))[0]:
                if self._loop.time() - self._last_received > timeout_s:
                    _log.info("a batch was ended: its client did not read the responses")
                    raise ClientDisconnect
            sending.result()
        finally:
            sending.cancel()
