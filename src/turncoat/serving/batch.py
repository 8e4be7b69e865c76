"""The batch endpoint: NDJSON in, NDJSON out, scored and answered in order while lines arrive.

Each batch runs three tasks: one reads and submits lines, one collects their responses in order,
one sends them. Responses that a client has not read yet are buffered, so that a client may send
its whole batch before it reads; all batches of a process share `_MAX_BUFFER_BYTES`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from turncoat.errors import StoreError, TurncoatError
from turncoat.serving.auth import RateLimiter
from turncoat.serving.batcher import OutOfOrderError, OverloadedError, ShuttingDownError
from turncoat.serving.middleware import (
    DeadlineError,
    RequestError,
    check_size,
    describe_error,
    log_error,
    receive_body,
)
from turncoat.serving.responses import ErrorResponse, ScoredResponse, encode_json
from turncoat.serving.service import Service

MEDIA_TYPE = "application/x-ndjson"
_MAX_PENDING = 64  # lines of a batch that are scored at the same time
_MAX_CHUNK_BYTES = 65_536
_MAX_BUFFER_BYTES = 128 * 1024 * 1024  # about 100,000 responses
_RETRYABLE = (StoreError, OverloadedError)  # errors after which the same line may be sent again
_log = logging.getLogger("turncoat")


class BatchEndpoint:
    """ASGI application that scores batches."""

    def __init__(
        self, service: Service, rate_limiter: RateLimiter, is_stopping: Callable[[], bool]
    ) -> None:
        """Share the service, the rate limits and the response buffer between all batches."""
        self.service, self.rate_limiter, self.is_stopping = service, rate_limiter, is_stopping
        self.n_buffered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one batch."""
        headers = [(b"content-type", MEDIA_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _Batch(self, scope["caller"], receive, send).run()


class _PendingLine(NamedTuple):
    """A line whose response is due."""

    number: int
    result: asyncio.Future[ScoredResponse] | Exception
    customer: str | None = None
    deadline: float = 0.0  # by the loop's clock


class _Batch:
    """One batch request."""

    def __init__(self, endpoint: BatchEndpoint, caller: str, receive: Receive, send: Send) -> None:
        self._endpoint, self._caller, self._receive, self._send = endpoint, caller, receive, send
        self._service, self._settings = endpoint.service, endpoint.service.settings
        self._loop, self._n_lines = asyncio.get_running_loop(), 0
        self._last_received, self._stop_at = self._loop.time(), math.inf
        self._pending: asyncio.Queue[_PendingLine | None] = asyncio.Queue(_MAX_PENDING)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._latest: dict[str, asyncio.Future[ScoredResponse]] = {}  # unanswered, by customer
        self._to_resend: set[str] = set()  # customers with a line that was not written

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_lines())
                sender = tasks.create_task(self._send_chunks())
                await self._collect_responses()
                await sender
                reader.cancel()
        except* ClientDisconnect:
            pass
        finally:
            for future in self._latest.values():
                future.cancel()
            while not self._outbox.empty():
                self._endpoint.n_buffered_bytes -= len(self._outbox.get_nowait())

    async def _read_lines(self) -> None:
        """Submit every line. Then wait for the client to leave, to stop work nobody waits for."""
        try:
            await self._submit_lines()
        except TurncoatError as error:  # ends the batch
            await self._pending.put(_PendingLine(self._n_lines, error))
        await self._pending.put(None)
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def _submit_lines(self) -> None:
        rest, has_more = b"", True
        while has_more:
            try:
                async with asyncio.timeout(self._settings.client_timeout_s):
                    piece, has_more = await receive_body(self._receive)
            except TimeoutError:
                self._n_lines += 1
                message = f"nothing came for {self._settings.client_timeout_s:g} seconds"
                raise RequestError(408, "body_timeout", message) from None
            self._last_received = self._loop.time()
            *lines, rest = (rest + piece).split(b"\n")
            if not has_more and rest:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._n_lines += 1
                if line.strip():
                    await self._wait_for_turn()
                    await self._pending.put(self._submit(line))
            if has_more:
                self._check_shutdown()
            if len(rest) > self._settings.max_body_bytes:
                self._n_lines += 1
                check_size(len(rest), self._settings, "a line")

    async def _wait_for_turn(self) -> None:
        """Check the number of lines and wait for the caller's rate limit."""
        max_lines = self._settings.max_batch_lines
        if self._n_lines > max_lines:
            raise RequestError(413, "too_large", f"the batch has more than {max_lines:,} lines")
        while wait_s := self._endpoint.rate_limiter.acquire(self._caller):
            self._check_shutdown()
            await asyncio.sleep(min(wait_s, 0.5))

    def _check_shutdown(self) -> None:
        """Raise a ShuttingDownError `request_timeout_s` after the server was told to stop."""
        now = self._loop.time()
        if self._endpoint.is_stopping():
            self._stop_at = min(self._stop_at, now + self._settings.request_timeout_s)
        if now >= self._stop_at:
            raise ShuttingDownError

    def _submit(self, line: bytes) -> _PendingLine:
        """Queue a line's transaction behind the customer's earlier lines."""
        customer = None
        try:
            check_size(len(line), self._settings, "a line")
            transaction = self._service.registry.current.decoder.decode(line)
            customer = transaction.customer
            if customer in self._to_resend:
                raise OutOfOrderError
            future = self._service.submit(transaction, self._latest.get(customer))
        except TurncoatError as error:
            if customer is not None and isinstance(error, _RETRYABLE):
                self._to_resend.add(customer)
            return _PendingLine(self._n_lines, error, customer)
        self._latest[customer] = future
        deadline = self._loop.time() + self._settings.request_timeout_s
        return _PendingLine(self._n_lines, future, customer, deadline)

    async def _collect_responses(self) -> None:
        """Put the responses into the outbox in the order of the lines, several in a chunk."""
        chunk: list[bytes] = []
        n_bytes = 0
        while (line := await self._pending.get()) is not None:
            response = await self._wait_for_response(line)
            chunk.append(response)
            n_bytes += len(response)
            if self._pending.empty() or n_bytes > _MAX_CHUNK_BYTES:
                await self._buffer(b"\n".join([*chunk, b""]))
                chunk, n_bytes = [], 0
        if chunk:
            await self._buffer(b"\n".join([*chunk, b""]))
        self._outbox.put_nowait(b"")

    async def _wait_for_response(self, line: _PendingLine) -> bytes:
        """Return the response of a line, or its error."""
        try:
            if isinstance(line.result, Exception):
                raise line.result
            async with asyncio.timeout_at(line.deadline):
                return (await line.result).body
        except TimeoutError:
            error: Exception = DeadlineError(self._settings.request_timeout_s)
        except Exception as problem:
            error = problem
        finally:
            if line.customer is not None and self._latest.get(line.customer) is line.result:
                del self._latest[line.customer]
        if line.customer is not None and isinstance(error, _RETRYABLE):
            self._to_resend.add(line.customer)
        log_error(error)
        detail = describe_error(error)[1]
        self._service.metrics.count_error(detail.kind)
        return encode_json(ErrorResponse(detail, line=line.number))

    async def _buffer(self, chunk: bytes) -> None:
        """Add a chunk to the outbox; wait until it is sent if all buffers together are full."""
        self._endpoint.n_buffered_bytes += len(chunk)
        self._outbox.put_nowait(chunk)
        if self._endpoint.n_buffered_bytes > _MAX_BUFFER_BYTES:
            await self._outbox.join()

    async def _send_chunks(self) -> None:
        """Send chunks until an empty one, the end."""
        while chunk := await self._outbox.get():
            try:
                await self._send_chunk(chunk)
            finally:
                self._endpoint.n_buffered_bytes -= len(chunk)
                self._outbox.task_done()
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_chunk(self, chunk: bytes) -> None:
        """Send a chunk. Give up on a client that neither reads nor sends for `client_timeout_s`."""
        message = {"type": "http.response.body", "body": chunk, "more_body": True}
        sending = asyncio.ensure_future(self._send(message))
        try:
            while not (await asyncio.wait({sending}, timeout=self._settings.client_timeout_s))[0]:
                if self._loop.time() - self._last_received > self._settings.client_timeout_s:
                    _log.info("a batch was ended: its client did not read the responses")
                    raise ClientDisconnect
            sending.result()
        finally:
            sending.cancel()
