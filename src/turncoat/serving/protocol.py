"""HTTP with a limit to patience: a client that does not finish the head of its request, or begin with the body, in time is hung up on."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turncoat.serving.offers import DecliningParser

MOST_HEAD_BYTES = 65536
ENDING = "turncoat.ending"  # in the scope of a request once the server is ending


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself waits for ever."""

    head_seconds = 10.0  # of all connections of a process
    _head_bytes = 0
    _began = False  # whether a request begins in the piece at hand
    _has_head = False  # whether the head of the latest request is whole
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.parser = DecliningParser(self)
        self._unanswered: deque[Any] = deque()  # requests, oldest first: some clients send the next before they have the answer
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take in a piece; the head of a request may have so many bytes and no more."""
        self._began = False
        super().data_received(data)
        if self._patience is None:
            self._head_bytes = 0
        elif not self._began:  # what came before the beginning of this head is another request's
            self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request's head, and the first of its body."""
        super().on_message_begin()
        self._began, self._has_head, self._head_bytes = True, False, 0
        self._wait()

    def on_headers_complete(self) -> None:
        """The head is there."""
        super().on_headers_complete()
        self._has_head = True
        self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        """The oldest request is answered."""
        self._unanswered.popleft()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        """The head is there, and some of the body, whose rest its reader waits for."""
        self._stop_waiting()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All is there; or, if the parser believes that no more HTTP follows, the head."""
        if self.parser.should_upgrade():
            return
        self._stop_waiting()
        super().on_message_complete()

    def shutdown(self) -> None:
        """The server is ending: requests under way may be answered, and are told."""
        for request in self._unanswered:
            request.scope[ENDING] = True
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: say so and hang up, on the requests before it, too."""
        self._drop()
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        self._drop()
        super().connection_lost(exc)

    def _drop(self) -> None:
        """Let nobody write an answer that has nowhere to go."""
        for request in self._unanswered:
            request.disconnected = True
            request.message_event.set()

    def _wait(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        """Hang up, unless an earlier request is still being answered: until then the rest of this one may not even be read."""
        if len(self._unanswered) > self._has_head:
            self._wait()
        else:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
