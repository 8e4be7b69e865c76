"""Layers around every route: errors as JSON, request ids, authentication, limits, deadline."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turncoat.errors import StateError, StoreError, TurncoatError
from turncoat.serving.auth import ApiKeyAuthenticator, RateLimiter, is_loopback_url
from turncoat.serving.batcher import OverloadedError
from turncoat.serving.decoding import InvalidJsonError
from turncoat.serving.responses import ErrorDetail, ErrorResponse, encode_json
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.updater import LateTransactionError, UnknownTransactionError

CURRENT_REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")  # for log lines
ANY_KEY = "any"  # the scope of a route that every valid key may use
_log = logging.getLogger("turncoat")
_USABLE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_COMMON_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"server", b"turncoat"),
]
_ID_PREFIX, _ID_NUMBERS = os.urandom(5).hex(), itertools.count(2**20)  # 16 digits together
_KINDS = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
_KINDS |= {408: "body_timeout", 413: "too_large", 429: "rate_limited", 503: "store"}


class DeadlineError(OverloadedError):
    """A request that took longer than `request_timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        """Name the limit in the message."""
        remedy = "Whether it was counted is open: send it again with the same id"
        super().__init__(f"no result within {timeout_s:g} seconds. {remedy}")


_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (ClientDisconnect, 400, "malformed"),
    (InvalidJsonError, 400, "malformed"),
    (LateTransactionError, 409, "late"),
    (UnknownTransactionError, 404, "not_found"),
    (DeadlineError, 503, "timeout"),
    (OverloadedError, 503, "overloaded"),
    (StoreError, 503, "store"),
    (StateError, 503, "store"),  # stored data is never the sender's fault
    (TurncoatError, 422, "invalid"),
)


def describe_error(error: Exception) -> tuple[int, ErrorDetail]:
    """Return the status and the detail to send."""
    if isinstance(error, HTTPException):
        kind = _KINDS.get(error.status_code, "http")
        return error.status_code, ErrorDetail(kind, str(error.detail))
    for error_type, status, kind in _ERRORS:
        if isinstance(error, error_type):
            text = str(error) or "the body ended early"  # a ClientDisconnect has no message
            return status, ErrorDetail(kind, text, getattr(error, "field", None))
    return 500, ErrorDetail("internal", "internal error; details are in the server's log")


def log_error(error: Exception) -> None:
    """Log an error that is not the sender's fault. The request itself is never logged."""
    if isinstance(error, StoreError | StateError):
        _log.error("%s", error)
    elif not isinstance(error, TurncoatError | HTTPException | ClientDisconnect):
        _log.error("a request failed", exc_info=error)


@dataclass
class ErrorMiddleware:
    """Outermost layer: gives each request an id and turns exceptions into JSON responses."""

    app: ASGIApp
    count_error: Callable[[str], None]  # called with the kind of every error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _read_request_id(scope)
        CURRENT_REQUEST_ID.set(request_id)
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                id_header = (b"x-request-id", request_id.encode())
                message["headers"] = [*message["headers"], *_COMMON_HEADERS, id_header]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            log_error(error)
            if not has_started:  # else the server closes the connection
                await self._build_response(error)(scope, receive, send_with_headers)

    def _build_response(self, error: Exception) -> Response:
        status, detail = describe_error(error)
        self.count_error(detail.kind)
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        if status == 503:
            headers["Retry-After"] = "1"
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(encode_json(ErrorResponse(detail)), status, headers, "application/json")


def _read_request_id(scope: Scope) -> str:
    """Return the client's X-Request-ID if it is usable, otherwise a new id."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{_ID_PREFIX}{next(_ID_NUMBERS):x}"


@dataclass
class AuthMiddleware:
    """Lets a route's callers in by key and rate; their name is in the ASGI `scope["caller"]`.

    Without keys only programs and pages of this machine are let in.
    """

    app: ASGIApp
    authenticator: ApiKeyAuthenticator
    rate_limiter: RateLimiter
    key_scope: str  # that the route needs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or raise an HTTPException."""
        headers = dict(scope["headers"])
        if self.authenticator.needs_key:
            caller = self._authorize(headers)
        else:
            _check_local(headers)
            caller = scope["client"][0] if scope.get("client") else "local"
        if wait_s := self.rate_limiter.acquire(caller):
            message = f"more than {self.rate_limiter.per_second:g} requests per second"
            raise HTTPException(429, message, {"Retry-After": str(math.ceil(wait_s))})
        scope["caller"] = caller
        await self.app(scope, receive, send)

    def _authorize(self, headers: dict[bytes, bytes]) -> str:
        """Return the name of the caller's key if it has the scope of the route."""
        header = headers.get(b"authorization", b"")
        secret = header[7:] if header[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
        key = self.authenticator.find_key(secret.decode("latin-1"))
        if key is None:
            hint = "Send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            raise HTTPException(401, f"no valid API key. {hint}")
        if self.key_scope not in (ANY_KEY, *key.scopes):
            scopes = ", ".join(sorted(key.scopes))
            raise HTTPException(403, f"this key lacks the scope {self.key_scope}; it has {scopes}")
        return key.name


def _check_local(headers: dict[bytes, bytes]) -> None:
    """Refuse web pages of other sites: by their Origin, or by a host name mapped to loopback."""
    origin = headers.get(b"origin")
    if origin is not None and not is_loopback_url(origin):
        name = origin.decode("latin-1")
        raise HTTPException(403, f"pages of {name} may not use a service without keys")
    if not is_loopback_url(b"//" + headers.get(b"host", b"localhost")):
        message = "without keys only requests to localhost are served"
        raise HTTPException(403, f"{message}. Use --keys, or send `Host: localhost`")


@dataclass
class LimitedHandler:
    """Reads a request's body within size and time limits, then runs its handler with a deadline.

    The body is in the ASGI `scope["body"]`. Errors pass through to ErrorMiddleware.
    """

    handler: Callable[[Request], Awaitable[Response]]
    settings: ServiceSettings
    has_body: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or raise an HTTPException or DeadlineError."""
        timeout_s, is_complete = self.settings.request_timeout_s, not self.has_body
        body_timeout_s = self.settings.client_timeout_s
        try:
            async with asyncio.timeout(timeout_s if is_complete else body_timeout_s) as limit:
                if self.has_body:
                    scope["body"] = await read_body(scope, receive, self.settings)
                    is_complete = True
                    limit.reschedule(asyncio.get_running_loop().time() + timeout_s)
                response = await self.handler(Request(scope, receive))
                await response(scope, receive, send)
        except TimeoutError:
            if is_complete:
                raise DeadlineError(timeout_s) from None
            message = f"the body took longer than {body_timeout_s:g} seconds"
            raise HTTPException(408, message) from None


async def read_body(scope: Scope, receive: Receive, settings: ServiceSettings) -> bytes:
    """Return the body; an HTTPException if it is too long, a ClientDisconnect if it is cut off."""
    length = next((int(value) for name, value in scope["headers"] if name == b"content-length"), -1)
    check_size(length, settings, "the body")
    pieces, size, has_more = [], 0, True
    while has_more:
        piece, has_more = await receive_body(receive)
        pieces.append(piece)
        size += len(piece)
        check_size(size, settings, "the body")
    if size < length:
        raise ClientDisconnect
    return b"".join(pieces)


async def receive_body(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece of a body, and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def check_size(n_bytes: int, settings: ServiceSettings, what: str) -> None:
    """Raise an HTTPException if a body or a line is longer than `max_body_bytes`."""
    if n_bytes > settings.max_body_bytes:
        raise HTTPException(413, f"{what} is longer than {settings.max_body_bytes:,} bytes")
