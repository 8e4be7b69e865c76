"""What clients send, neither too long nor too slow: a whole body, or lines as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from turncoat.errors import TurncoatError
from turncoat.serving.batcher import ShuttingDownError
from turncoat.serving.protocol import ENDING, TAKEN
from turncoat.serving.refusals import RequestError
from turncoat.serving.settings import ServiceSettings

_TURNS = 4  # of the loop, in which a piece that is in the socket already is read

Head = Mapping[bytes, bytes]  # of a request: names in lower case, and values


async def read_body(receive: Receive, head: Head, settings: ServiceSettings) -> bytes:
    """The whole body, if it is neither too long nor too slow. Who sends nothing of it is hung up on by the protocol."""
    most = settings.max_body_bytes
    if int(head.get(b"content-length", b"0")) > most:
        raise RequestError(413, "too_large", f"the body is longer than {most:,} bytes")
    body, more = await _piece(receive)
    if more:
        try:
            async with asyncio.timeout(settings.client_timeout_s):
                pieces, size = [body], len(body)
                while more and size <= most:
                    piece, more = await _piece(receive)
                    pieces.append(piece)
                    size += len(piece)
        except TimeoutError:
            raise RequestError(
                408, "slow", f"the body took longer than {settings.client_timeout_s:g} seconds"
            ) from None
        body = b"".join(pieces)
    if len(body) > most:
        raise RequestError(413, "too_large", f"the body is longer than {most:,} bytes")
    return body


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    """The next piece of a body, and whether more are to come."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


class Incoming:
    """A body that comes piece by piece, and whether its sender is still there."""

    def __init__(self, receive: Receive, settings: ServiceSettings, scope: Scope) -> None:
        """Of a request that nothing was read of yet."""
        self._receive, self._settings, self._scope = receive, settings, scope
        self._leaving: asyncio.Task[Message] | None = (
            None  # once all was received, the next that comes is that the client leaves
        )

    @property
    def is_whole(self) -> bool:
        """Whether all of the body is here."""
        return self._leaving is not None

    @property
    def is_ending(self) -> bool:
        """Whether the server is."""
        return ENDING in self._scope

    async def lines(self) -> AsyncIterator[bytes | TurncoatError | None]:
        """The lines as they come, and None whenever the next is still on its way.

        The last is an error if the body goes on too long, or stalls, or the server ends before it is whole.
        """
        rest, n_lines = b"", 0
        while not self.is_whole:
            coming = asyncio.ensure_future(self._piece())
            try:
                if not await _is_at_the_door(coming):
                    yield None
                *lines, rest = (
                    rest + await asyncio.wait_for(coming, self._settings.client_timeout_s)
                ).split(b"\n")
            except TimeoutError:
                yield RequestError(
                    408, "slow", f"nothing came for {self._settings.client_timeout_s:g} seconds"
                )
                return
            finally:
                coming.cancel()
            for line in lines:
                n_lines += 1
                if problem := self._problem(n_lines, b""):
                    yield problem
                    return
                self._scope[TAKEN] = asyncio.get_running_loop().time()
                yield line
            if problem := self._problem(n_lines, rest):
                yield problem
                return
        if rest:
            yield self._problem(n_lines + 1, b"") or rest

    def _problem(self, n_lines: int, rest: bytes) -> TurncoatError | None:
        """Why no more lines are taken, after so many and the beginning of another."""
        most = self._settings
        if self.is_ending and not self.is_whole:
            return ShuttingDownError()
        if n_lines > most.max_batch_lines:
            return RequestError(
                413, "too_large", f"the batch has more than {most.max_batch_lines:,} lines"
            )
        if len(rest) > most.max_body_bytes:
            return RequestError(
                413, "too_large", f"a line is longer than {most.max_body_bytes:,} bytes"
            )
        return None

    async def _piece(self) -> bytes:
        piece, more = await _piece(self._receive)
        if not more:
            self._leaving = asyncio.ensure_future(self._receive())
        return piece

    def check_sender(self) -> None:
        """Raise ClientDisconnect if nobody waits for the answer."""
        if self._leaving is not None and self._leaving.done():
            raise ClientDisconnect

    def close(self) -> None:
        """Nothing more is wanted."""
        if self._leaving is not None:
            self._leaving.cancel()


async def _is_at_the_door(coming: asyncio.Future[bytes]) -> bool:
    """Whether a piece comes within a few turns of the loop."""
    for _ in range(_TURNS):
        if coming.done():
            return True
        await asyncio.sleep(0)
    return coming.done()
