"""A queue in front of the belief updater: requests that wait together are processed together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from turncoat.errors import StoreError, TurncoatError
from turncoat.serving.decoding import Label, Transaction

Item = Transaction | Label
_Future = asyncio.Future[Any]
Process = Callable[[Sequence[Item]], Awaitable[Sequence[Any]]]


class OverloadedError(TurncoatError):
    """The service cannot process the request now. It may be sent again."""

    default = "the service is overloaded"

    def __init__(self, message: str = "") -> None:
        """Use the class's message unless one is given."""
        super().__init__(message or self.default)


class ShuttingDownError(OverloadedError):
    """The service is shutting down."""

    default = "the service is shutting down and did not process this. Send it again"


class OutOfOrderError(OverloadedError):
    """An earlier request of the same customer was not processed."""

    default = "an earlier request of this customer was not processed. Send both again, in order"


RETRYABLE_ERRORS = (StoreError, OverloadedError)  # the same request may succeed later


class _Queued(NamedTuple):
    """A request in the queue."""

    item: Item
    response: _Future
    sort_time: float | None  # place among its customer's requests in a batch; None: as it came

    def set_exception(self, problem: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(problem)


class MicroBatcher:
    """Passes queued requests to `process` in order, one batch at a time, as many as have come.

    A request whose future is cancelled (the sender has left, or its deadline has passed) before
    its batch starts is dropped. Requests of the same customer that wait behind one that was
    dropped, or that should be sent again, fail with it: sent again in order, none is late.
    """

    def __init__(
        self, process: Process, max_batch_size: int = 64, max_queue_size: int = 4096
    ) -> None:
        """`process` returns one response, or exception, for each request. `run` starts it."""
        self._process = process
        self._max_batch_size, self._max_queue_size = max_batch_size, max_queue_size
        self._queue: deque[_Queued] = deque()
        self._has_work = asyncio.Event()
        self._is_closing = self._has_cancelled = False

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue)

    def submit(
        self, item: Item, predecessor: _Future | None = None, sort_time: float | None = None
    ) -> _Future:
        """Queue a request; the future gets its response after the write, or the exception.

        If its predecessor has failed already and should be sent again, so should this one. A
        customer's requests with a `sort_time` that meet in a batch are processed in its order.
        """
        if self._is_closing:
            raise ShuttingDownError
        if predecessor is not None and predecessor.done() and _should_resend(predecessor):
            raise OutOfOrderError
        if len(self._queue) >= self._max_queue_size:
            raise OverloadedError(f"{len(self._queue):,} requests are waiting already")
        response: _Future = asyncio.get_running_loop().create_future()
        response.add_done_callback(self._on_done)
        self._queue.append(_Queued(item, response, sort_time))
        self._has_work.set()
        return response

    async def run(self) -> None:
        """Process requests until `close`, then the rest of the queue."""
        while self._queue or not self._is_closing:
            await self._has_work.wait()
            await asyncio.sleep(0)  # so that cancelled requests are noticed
            await self._process_batch()
            if not self._queue and not self._is_closing:
                self._has_work.clear()

    def close(self) -> None:
        """Accept no more requests; `run` ends when all in the queue have a response."""
        self._is_closing = True
        self._has_work.set()

    async def _process_batch(self) -> None:
        self._fail_followers()
        size = min(len(self._queue), self._max_batch_size)
        batch = _sort_by_time([self._queue.popleft() for _ in range(size)])
        if not batch:
            return
        try:
            responses = await self._process([queued.item for queued in batch])
        except Exception as problem:  # of the whole batch
            responses = [problem] * len(batch)
        to_resend = set()
        for queued, response in zip(batch, responses, strict=True):
            if isinstance(response, Exception):
                queued.set_exception(response)
                if isinstance(response, RETRYABLE_ERRORS):
                    to_resend.add(queued.item.keys[0])
            elif not queued.response.done():
                queued.response.set_result(response)
        self._fail_followers(to_resend)

    def _on_done(self, response: _Future) -> None:
        if response.cancelled() and not self._has_cancelled:
            self._has_cancelled = True
            asyncio.get_running_loop().call_soon(self._fail_followers)

    def _fail_followers(self, customers: Iterable[str] = ()) -> None:
        """Drop cancelled requests, and fail those behind them or of `customers`."""
        failed = set(customers)
        if not failed and not self._has_cancelled:
            return
        queue, self._queue, self._has_cancelled = self._queue, deque(), False
        for queued in queue:
            if queued.response.cancelled():
                failed.add(queued.item.keys[0])
            elif queued.item.keys[0] in failed:
                queued.set_exception(OutOfOrderError())
            else:
                self._queue.append(queued)


def _sort_by_time(batch: list[_Queued]) -> list[_Queued]:
    """Return the batch with each customer's requests that have a `sort_time` in its order.

    They share the places they had; others stay where they are.
    """
    places: dict[str, list[tuple[float, int]]] = {}
    for place, queued in enumerate(batch):
        if queued.sort_time is not None:
            places.setdefault(queued.item.keys[0], []).append((queued.sort_time, place))
    ordered = list(batch)
    for own in places.values():
        for (_, place), (_, moved) in zip(own, sorted(own), strict=True):
            ordered[place] = batch[moved]
    return ordered


def _should_resend(response: _Future) -> bool:
    return response.cancelled() or isinstance(response.exception(), RETRYABLE_ERRORS)
