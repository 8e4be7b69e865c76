"""Requests in line: all that wait are scored together and written in one instant, in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from turncoat.errors import StoreError, TurncoatError
from turncoat.serving.decoding import Transaction
from turncoat.serving.responses import ScoredResponse

_LANES = 2  # while one batch is being written, the next is scored
_IDLE_TURNS = 2  # of the loop, after which nobody else is at the door
_FEW = 8  # transactions that are not worth a batch of their own

Work = Callable[[Sequence[Transaction]], Awaitable[list[ScoredResponse | Exception]]]


class OverloadedError(TurncoatError):
    """More is waiting than can be answered soon, or the service is ending."""


class ShuttingDownError(OverloadedError):
    """What the server has no time for any more."""

    def __init__(self) -> None:
        """Always the same."""
        super().__init__(
            "the service is ending: this and what comes after it is not scored. Send it again"
        )


class OutOfOrderError(OverloadedError):
    """A transaction that would be before another one when that is sent again."""

    def __init__(self) -> None:
        """Always the same."""
        super().__init__(
            "an earlier transaction of this customer was not written. Send both again, in order"
        )


RETRYABLE_ERRORS = (
    StoreError,
    OverloadedError,
)  # what is no reason not to send a transaction again


class _Waiting(NamedTuple):
    """A transaction in line."""

    one: Transaction
    answer: asyncio.Future[ScoredResponse]
    after: asyncio.Future[ScoredResponse] | None  # the answer to the one before it

    def is_overtaking(self) -> bool:
        """Whether the one before it has to be sent again."""
        before = self.after
        return (
            before is not None
            and before.done()
            and not before.cancelled()
            and isinstance(before.exception(), RETRYABLE_ERRORS)
        )


class MicroBatcher:
    """Gives what waits to `work`, as many at a time as have come."""

    def __init__(self, work: Work, max_batch_size: int = 64, max_queue_size: int = 4096) -> None:
        """To be started with `run`."""
        self._work, self._max_batch_size, self._max_queue_size = (
            work,
            max_batch_size,
            max_queue_size,
        )
        self._waiting: deque[_Waiting] = deque()
        self._something = asyncio.Event()
        self._ending = False
        self._n_busy = 0  # lanes at work

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def submit(
        self, one: Transaction, after: asyncio.Future[ScoredResponse] | None = None
    ) -> asyncio.Future[ScoredResponse]:
        """Join the line: the answer comes once it is written, or what went wrong is raised.

        One that comes `after` another is not scored if that could not be written, since it would be before it when both are sent again.
        """
        if self._ending:
            raise ShuttingDownError
        if len(self._waiting) >= self._max_queue_size:
            raise OverloadedError(f"{len(self._waiting):,} transactions are waiting already")
        answer: asyncio.Future[ScoredResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(one, answer, after))
        self._something.set()
        return answer

    async def run(self) -> None:
        """Answer until `end`, and then what still waits."""
        await asyncio.gather(*(self._lane() for _ in range(_LANES)))

    async def _lane(self) -> None:
        while not (self._ending and not self._waiting):
            await self._something.wait()
            await self._gathered()
            if self._waiting:
                await self._next()
            elif not self._ending:
                self._something.clear()

    async def _gathered(self) -> None:
        """Let join who is at the door: as long as turns of the loop bring somebody, another is worth it."""
        before, n_idle = 0, 0
        while n_idle < _IDLE_TURNS and len(self._waiting) < self._max_batch_size:
            n_idle = 0 if len(self._waiting) > before else n_idle + 1
            before = len(self._waiting)
            await asyncio.sleep(0)

    def end(self) -> None:
        """Take no more; `run` ends once all who wait have their answer."""
        self._ending = True
        self._something.set()

    def _share(self) -> int:
        """How many to take: all that wait, or half of them if the other lane is free to score those while these are written."""
        all_of_them = min(len(self._waiting), self._max_batch_size)
        return all_of_them if self._n_busy else max(-(-all_of_them // 2), min(all_of_them, _FEW))

    async def _next(self) -> None:
        batch = [self._waiting.popleft() for _ in range(self._share())]
        self._n_busy += 1
        try:
            await self._answer(batch)
        finally:
            self._n_busy -= 1

    async def _answer(self, taken: list[_Waiting]) -> None:
        for each in taken:
            if each.is_overtaking() and not each.answer.done():
                each.answer.set_exception(OutOfOrderError())
        batch = [each for each in taken if not each.answer.done()]  # whose client has not gone
        try:
            given = await self._work([each.one for each in batch]) if batch else []
        except Exception as problem:  # whatever it is, it is the answer to all of them
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(problem)
            return
        for (_, answer, _), one in zip(batch, given, strict=True):
            if answer.done():
                continue
            if isinstance(one, ScoredResponse):
                answer.set_result(one)
            else:
                answer.set_exception(one)
