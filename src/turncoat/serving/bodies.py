"""What clients send, neither too long nor too slow: a whole body, or lines as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from turncoat.errors import TurncoatError
from turncoat.serving.refusals import RequestError
from turncoat.serving.settings import Settings


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body, if it is neither too long nor too slow."""
    most = settings.most_body
    if int(request.headers.get("content-length", "0")) > most:
        raise RequestError(413, "too_large", f"the body is longer than {most:,} bytes")
    pieces, size = [], 0
    try:
        async with asyncio.timeout(settings.client_seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise RequestError(413, "too_large", f"the body is longer than {most:,} bytes")
                pieces.append(piece)
    except TimeoutError:
        raise RequestError(408, "slow", f"the body took longer than {settings.client_seconds:g} seconds") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Incoming:
    """A body that comes piece by piece, and whether its sender is still there."""

    def __init__(self, request: Request, settings: Settings) -> None:
        """Of a request that nothing was read of yet."""
        self._receive, self._settings = request.receive, settings
        self._leaving: asyncio.Task[Message] | None = None  # once all was received, the next that comes is that the client leaves

    async def lines(self) -> AsyncIterator[bytes | TurncoatError]:
        """The lines as they come; the last is an error if the body goes on too long, or stalls."""
        most, rest, n_lines = self._settings, b"", 0
        while self._leaving is None:
            try:
                piece = await asyncio.wait_for(self._piece(), most.client_seconds)
            except TimeoutError:
                yield RequestError(408, "slow", f"nothing came for {most.client_seconds:g} seconds")
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                n_lines += 1
                if n_lines > most.most_lines:
                    yield RequestError(413, "too_large", f"the batch has more than {most.most_lines:,} lines")
                    return
                yield line
            if len(rest) > most.most_body:
                yield RequestError(413, "too_large", f"a line is longer than {most.most_body:,} bytes")
                return
        if rest:
            yield rest

    async def _piece(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if not message.get("more_body", False):
            self._leaving = asyncio.ensure_future(self._receive())
        return bytes(message.get("body", b""))

    def check_sender(self) -> None:
        """Raise ClientDisconnect if nobody waits for the answer."""
        if self._leaving is not None and self._leaving.done():
            raise ClientDisconnect

    def close(self) -> None:
        """Nothing more is wanted."""
        if self._leaving is not None:
            self._leaving.cancel()
