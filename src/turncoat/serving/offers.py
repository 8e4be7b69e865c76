"""Offers of a client to go on in another protocol (`Upgrade: h2c`, as Java's and other clients send by default): declined, not obeyed.

The parser of HTTP/1.1 takes such an offer for accepted, and what follows the head for no longer its own. HTTP lets a server ignore the
offer, and then the body that follows is as ever.
"""

from __future__ import annotations

from typing import Any

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class DecliningParser(httptools.HttpRequestParser):
    """httptools' parser, for a protocol that declines every offer."""

    def __init__(self, protocol: Any, hears: Any = None) -> None:
        """For a protocol which has this parser as its `parser`; what is parsed is told to who `hears`, the protocol unless one is named."""
        super().__init__(hears or protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse a piece."""
        feed, rest = super().feed_data, data
        while True:
            try:
                feed(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            else:
                return
            self._protocol.parser = another = DecliningParser(self._protocol, _Rest(self._protocol))
            feed = super(DecliningParser, another).feed_data
            framing = [
                b"%s: %s\r\n" % header for header in self._protocol.headers if header[0] in _FRAMING
            ]
            feed(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))


class _Rest:
    """Hears a parser that was put into the middle of a request, and tells the protocol what comes after the head that it has."""

    def __init__(self, protocol: Any) -> None:
        self._protocol, self._has_head = protocol, True
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._has_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._has_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._has_head:
            self._has_head = False
        else:
            self._protocol.on_headers_complete()
