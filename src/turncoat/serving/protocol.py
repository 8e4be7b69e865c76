"""HTTP with a limit to patience: who takes too long to send a head, to begin with the body, or to read the answer is hung up on."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import os
import socket
import struct
import sys
import termios
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turncoat.serving.offers import DecliningParser

_log = logging.getLogger("turncoat")
MOST_HEAD_BYTES = 65536
READER_PATIENCE = 6  # times that with who sends
_AT_ONCE = struct.pack("ii", 1, 0)  # how a socket is closed: not in peace, after 0 seconds
ENDING = "turncoat.ending"  # in the scope of a request once the server is ending
TAKEN = "turncoat.taken"  # in the scope of a batch: when its latest line was taken in, by the loop's clock


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself waits for ever."""

    client_timeout_s = 10.0  # for all connections of a process
    _head_bytes = 0
    _began = False  # whether a request begins in the piece at hand
    _has_head = False  # whether the head of the latest request is whole
    _patience: asyncio.TimerHandle | None = None  # with a client that is to send something
    _unread: asyncio.TimerHandle | None = None  # with one that is to read
    _n_unread = 0  # bytes it had to read when that began

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.parser = DecliningParser(self)
        self._unanswered: deque[Any] = (
            deque()
        )  # requests, oldest first: some clients send the next before they have the answer
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take in a piece; the head of a request may have so many bytes and no more."""
        self._began = False
        super().data_received(data)
        if self._patience is None:
            self._head_bytes = 0
            if (
                not self._unanswered
            ):  # it came between requests, or belongs to one that needed no more of it
                self._wait()
        elif (
            not self._began and not self._has_head
        ):  # what came before the beginning of this head is another request's
            self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._hang_up()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request's head, and the first of its body."""
        super().on_message_begin()
        self._began, self._has_head, self._head_bytes = True, False, 0
        self._wait()

    def on_headers_complete(self) -> None:
        """The head is there."""
        super().on_headers_complete()
        self._has_head = True
        self.scope["headers"] = [*self.headers]  # which what follows the body is not to join
        self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        """The oldest request is answered."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            self._hang_up()

    def on_body(self, body: bytes) -> None:
        """The head is there, and some of the body, whose rest its reader waits for, if it still has one."""
        if not self.cycle.response_complete:
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
        if self.transport.is_closing():
            self._hang_up()
        elif self._unread is not None:
            self._wait_for_reader()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: say so and hang up, on the requests before it, too."""
        self._drop()
        super().send_400_response(msg)
        self._hang_up()

    def timeout_keep_alive_handler(self) -> None:
        """No other request came."""
        if not self.transport.is_closing():
            self._hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        self._unset_keepalive_if_required()  # uvicorn leaves it running if the client broke off
        self._drop()
        super().connection_lost(exc)

    def _drop(self) -> None:
        """Let nobody write an answer that has nowhere to go."""
        for request in self._unanswered:
            request.disconnected = True
            request.message_event.set()

    def pause_writing(self) -> None:
        """More is written than was read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """It is read."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_waiting_for_reader()

    def _wait_for_reader(self) -> None:
        self._stop_waiting_for_reader()
        self._n_unread = self._count_unread()
        self._unread = self.loop.call_later(self._reader_seconds, self._look_at_reader)

    @property
    def _reader_seconds(self) -> float:
        """Longer than for who sends: what is read slowly but steadily shows only when much of it is read. While the server ends, not."""
        is_ending = self.transport.is_closing() or any(
            ENDING in request.scope for request in self._unanswered
        )
        return self.client_timeout_s * (1 if is_ending else READER_PATIENCE)

    def _look_at_reader(self) -> None:
        """Hang up on one that has read nothing, unless lines of its batch are being taken in: many read once all is sent."""
        idle = self.loop.time() - max(
            (request.scope.get(TAKEN, -math.inf) for request in self._unanswered), default=-math.inf
        )
        if idle < self.client_timeout_s or self._count_unread() < self._n_unread:
            self._wait_for_reader()
        else:
            _log.info(
                "a client that read nothing of its answers for %g seconds was hung up on",
                self._reader_seconds,
            )
            with socket.socket(fileno=os.dup(self._file())) as same:
                same.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE
                )  # or the system would go on waiting
            self.transport.abort()

    def _count_unread(self) -> int:
        """Bytes that were written and did not reach the client, in the system's buffer, too."""
        in_system = (
            fcntl.ioctl(self._file(), termios.TIOCOUTQ, bytes(4)) if self._file() >= 0 else b""
        )
        return int.from_bytes(in_system, sys.byteorder) + self.transport.get_write_buffer_size()

    def _file(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(self.client_timeout_s, self._give_up)

    def _give_up(self) -> None:
        """Hang up, unless an earlier request is still being answered: until then the rest of this one may not even be read."""
        if len(self._unanswered) > self._has_head:
            self._wait()
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Once what is written is read, or when nothing of it is read any more."""
        self.transport.close()
        self._wait_for_reader()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
