"""A batch of transactions: lines that are answered, in order, while others still arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turncoat.errors import TurncoatError
from turncoat.serving.auth import RateLimiter
from turncoat.serving.batcher import (
    RETRYABLE_ERRORS,
    OutOfOrderError,
    OverloadedError,
    ShuttingDownError,
)
from turncoat.serving.bodies import Incoming
from turncoat.serving.refusals import RequestError, problem_of, tell_operator
from turncoat.serving.responses import ErrorResponse, ScoredResponse, encode_json
from turncoat.serving.service import Service

_AT_ONCE = 64  # lines of a batch on their way together
_MOST_UNREAD = (
    128 * 1024 * 1024
)  # bytes; the longest batch of one client that reads nothing until all is sent has about a hundred million


class Unread:
    """Answers to batches that their clients have not read yet, of all batches of a process."""

    n_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more."""
        return self.n_bytes > _MOST_UNREAD


class Lines(Response):
    """Lines sent as they are made. Starlette's own streaming response would read, and lose, what the client still sends."""

    media_type = "application/x-ndjson"

    def __init__(
        self, pieces: AsyncGenerator[bytes], headers: Mapping[str, str], unread: Unread
    ) -> None:
        """Each piece is some whole lines."""
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._pieces, self._unread = pieces, unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, then the lines. Those that the client does not read yet are kept, within limits, so that it may go on sending."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        made: asyncio.Queue[bytes] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as tasks, contextlib.aclosing(self._pieces):
                tasks.create_task(self._send(made, send))
                with contextlib.suppress(ClientDisconnect):  # who has gone needs no more lines
                    async for piece in self._pieces:
                        self._unread.n_bytes += len(piece)
                        made.put_nowait(piece)
                        if self._unread.is_full:
                            await made.join()
                made.put_nowait(b"")
        finally:
            while not made.empty():
                self._unread.n_bytes -= len(made.get_nowait())

    async def _send(self, made: asyncio.Queue[bytes], send: Send) -> None:
        """Pieces up to an empty one, which is the end."""
        while piece := await made.get():
            try:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            finally:
                self._unread.n_bytes -= len(piece)
                made.task_done()
        await send({"type": "http.response.body", "body": b""})


class _Line(NamedTuple):
    """A line that waits for its answer."""

    number: int
    answer: asyncio.Future[ScoredResponse] | TurncoatError
    customer: str | None  # if that much is known of it


async def answer_lines(
    service: Service, limiter: RateLimiter, incoming: Incoming, caller: str
) -> AsyncGenerator[bytes]:
    """Answers to lines, in order, a piece for every few, as long as somebody waits for them and the server goes on."""
    waiting: list[_Line] = []
    unwritten: set[str] = (
        set()
    )  # customers of whom a line is to be sent again: those after it must not overtake it
    number = 0
    try:
        async for line in incoming.lines():
            if line is not None:
                number += 1
                if isinstance(line, bytes) and not line.strip():
                    continue
                if not await _paced(limiter, incoming, caller):
                    waiting.append(_Line(number, ShuttingDownError(), None))
                    break
                waiting.append(
                    _Line(number, line, None)
                    if isinstance(line, TurncoatError)
                    else _asked(service, number, line, waiting, unwritten)
                )
            if waiting and (line is None or len(waiting) >= _AT_ONCE):
                yield await _answers(service, waiting, unwritten)
                incoming.check_sender()
                waiting = []
        if waiting:
            yield await _answers(service, waiting, unwritten)
    finally:
        incoming.close()
        for _, one, _ in waiting:  # of whom nobody wants the answer any more
            if isinstance(one, asyncio.Future) and not one.cancel() and not one.cancelled():
                one.exception()


async def _paced(limiter: RateLimiter, incoming: Incoming, caller: str) -> bool:
    """Wait until a caller may go on; whether there is time for that before the server ends."""
    while wait := limiter.wait(caller):
        if incoming.is_ending:
            return False
        await asyncio.sleep(wait)
        incoming.check_sender()
    return True


def _asked(
    service: Service, number: int, line: bytes, waiting: Sequence[_Line], unwritten: set[str]
) -> _Line:
    """Put a line's transaction in line, behind those of the same customer."""
    customer = None
    try:
        if len(line) > service.settings.max_body_bytes:
            raise RequestError(
                413, "too_large", f"a line is longer than {service.settings.max_body_bytes:,} bytes"
            )
        transaction = service.registry.current.decoder.decode(line)
        customer = transaction.customer
        if customer in unwritten:
            raise OutOfOrderError
        before = next(
            (
                one
                for _, one, other in reversed(waiting)
                if other == customer and isinstance(one, asyncio.Future)
            ),
            None,
        )
        return _Line(number, service.submit(transaction, before), customer)
    except TurncoatError as problem:
        if customer is not None and isinstance(problem, OverloadedError):
            unwritten.add(customer)
        return _Line(number, problem, customer)


async def _answers(service: Service, waiting: Sequence[_Line], unwritten: set[str]) -> bytes:
    """What is said to lines; customers whose line is to be sent again join `unwritten`."""
    pieces, problems = [], {}
    for number, one, customer in waiting:
        try:
            if isinstance(one, TurncoatError):
                raise one
            pieces.append((await one).body)
        except Exception as problem:
            said = problem_of(problem)[1]
            service.metrics.refused.labels(said.kind).inc()
            pieces.append(encode_json(ErrorResponse(said, line=number)))
            problems[id(problem)] = problem
            if customer is not None and isinstance(problem, RETRYABLE_ERRORS):
                unwritten.add(customer)
    for each in problems.values():
        tell_operator(each)
    return b"\n".join([*pieces, b""])
