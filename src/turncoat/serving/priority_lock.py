"""A lock that goes to who came first, not to who asked first: whoever has to try again is before all who came after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class PriorityLock:
    """Numbers in order, and one holder at a time: of all who wait, the one with the lowest number."""

    def __init__(self) -> None:
        """Free."""
        self._numbers, self._calls = count(), count()
        self._is_held = False
        self._waiting: list[
            tuple[int, int, asyncio.Future[None]]
        ] = []  # a heap, by number and then by call

    def number(self) -> int:
        """The next one's."""
        return next(self._numbers)

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Hold the lock once it is this number's turn."""
        while self._is_held:
            await self._handed_over(number)
            self._drop_those_who_left()
            if not self._waiting or number <= self._waiting[0][0]:
                break
            self._pass_on()  # to one that has come back since
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _handed_over(self, number: int) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (number, next(self._calls), mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # in the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._drop_those_who_left()
        if self._waiting:
            *_, next_one = heappop(self._waiting)
            next_one.set_result(None)  # who holds it from this moment on
        else:
            self._is_held = False

    def _drop_those_who_left(self) -> None:
        while self._waiting and self._waiting[0][-1].done():
            heappop(self._waiting)
