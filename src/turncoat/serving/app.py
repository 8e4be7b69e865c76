"""The service over HTTP: every route, and how answers and refusals are sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from turncoat import __version__
from turncoat.errors import TurncoatError
from turncoat.serving import auth
from turncoat.serving.admission import admitted
from turncoat.serving.batcher import ShuttingDownError
from turncoat.serving.batches import Lines, Unread, answer_lines
from turncoat.serving.bodies import Incoming, read_body
from turncoat.serving.decoding import decode_label
from turncoat.serving.metrics import CONTENT_TYPE
from turncoat.serving.openapi import describe
from turncoat.serving.page import page
from turncoat.serving.refusals import RequestError, problem_of, tell_operator
from turncoat.serving.responses import ErrorDetail, ErrorResponse, encode_json
from turncoat.serving.service import Service
from turncoat.serving.settings import ServiceSettings

_log = logging.getLogger("turncoat")
_BEFORE_THE_BODY = (401, 403, 408, 413, 429)  # answers that may be given before the body is read
SCORE_PATH = "/v1/score"
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_JSON_HEADERS = [
    (name.lower().encode(), value.encode())
    for name, value in {**_HEADERS, "Content-Type": "application/json"}.items()
]


def create_app(settings: ServiceSettings) -> Starlette:
    """The application, with its model loaded and its store open."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = App(
        routes=[
            Route(SCORE_PATH, score, methods=["POST"]),
            Route("/v1/score/batch", score_batch, methods=["POST"]),
            Route("/v1/labels", label, methods=["POST"]),
            Route("/v1/customers/{customer:name}", customer, methods=["GET"]),
            Route("/v1/model", model, methods=["GET"]),
            Route("/v1/drift", drift, methods=["GET"]),
            Route("/livez", alive, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/docs", docs, methods=["GET"]),
            Route("/", home, methods=["GET"]),
        ],
        exception_handlers={
            TurncoatError: _refuse,
            HTTPException: _refuse_http,
            ClientDisconnect: _gone,
            Exception: _refuse,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = (
        False  # to an address that the client may have for this server, without its TLS
    )
    app.state.service, app.state.unread = service, Unread()
    app.state.authenticator = auth.ApiKeyAuthenticator(
        auth.load_keys(None if settings.keys_file is None else Path(settings.keys_file))
    )
    app.state.rate_limiter = auth.RateLimiter(settings.rate_limit_per_s)
    return app


class _Name(Convertor[str]):
    """Whatever follows in the path: customers may have any name."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _Name())


class App(Starlette):
    """Starlette, with a short cut past its routing to the one route where every microsecond counts."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if scope["path"] != SCORE_PATH or scope["method"] != "POST":
            await self._routed(scope, receive, send)
            return
        scope["app"] = self
        try:
            body = await _scored(scope, receive)
        except ClientDisconnect:
            return
        except (
            asyncio.CancelledError
        ):  # the server ends, and has waited for the answer as long as it may
            await (await _refuse(Request(scope), ShuttingDownError()))(scope, receive, send)
            return
        except Exception as problem:
            await (await _refuse(Request(scope), problem))(scope, receive, send)
            return
        length = (b"content-length", str(len(body)).encode())
        await send(
            {"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, length]}
        )
        await send({"type": "http.response.body", "body": body})

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by a route; the same if the server ends, unless the answer has begun: then it stays without an end."""
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await super().__call__(scope, receive, send_on)
        except asyncio.CancelledError:
            if not has_begun:
                await (await _refuse(Request(scope), ShuttingDownError()))(scope, receive, send)


async def _scored(scope: Scope, receive: Receive) -> bytes:
    """The answer to one transaction."""
    service, head, _ = admitted(scope, auth.SCORE)
    started = time.perf_counter()
    transaction = service.registry.current.decoder.decode(
        await read_body(receive, head, service.settings)
    )
    given = await service.submit(transaction)
    service.metrics.duration.observe(time.perf_counter() - started)
    return given.body


async def score(request: Request) -> Response:
    """Score one transaction."""
    return _json(await _scored(request.scope, request.receive))


async def score_batch(request: Request) -> Response:
    """Score transactions, one JSON object a line; answers come a line each, in order, while lines still arrive."""
    service, _, caller = admitted(request.scope, auth.SCORE)
    incoming = Incoming(request.receive, service.settings, request.scope)
    return Lines(
        answer_lines(service, request.app.state.rate_limiter, incoming, caller),
        _HEADERS,
        request.app.state.unread,
    )


async def label(request: Request) -> Response:
    """Take in the outcome of a transaction."""
    service, head, _ = admitted(request.scope, auth.LABEL)
    body = decode_label(await read_body(request.receive, head, service.settings))
    return _json(
        encode_json(await service.label(str(body.customer), str(body.id), int(body.label)))
    )


async def customer(request: Request) -> Response:
    """What is remembered of a customer."""
    service, _, _ = admitted(request.scope, auth.READ)
    found = await service.customer(request.path_params["customer"])
    if found is None:
        raise RequestError(404, "not_found", "no transaction of this customer was scored yet")
    return _json(encode_json(found))


async def model(request: Request) -> Response:
    """Which model serves, its regimes, and an example of a transaction."""
    served = admitted(request.scope, auth.READ)[0].registry.current
    detector, regimes = served.detector, served.detector.regimes
    low, high = regimes.interval()
    told: dict[str, Any] = {
        "model": detector.digest_,
        "calibration": detector.calibration_.number,
        "turncoat": __version__,
        "tier": type(detector.model_).__name__,
        "supervision": detector.supervision,
        "fraud_regime": regimes.fraud_state,
        "measured_on": f"{regimes.part} part, {regimes.mode}",
        "regimes": [
            {
                "regime": k,
                "share_of_transactions": float(regimes.occupancy[k]),
                "fraud_share": float(regimes.mean_rates[k]),
                "interval": [float(low[k]), float(high[k])],
                "stays": float(regimes.stickiness[k]),
            }
            for k in range(regimes.n_states)
        ],
        "example": served.decoder.example,
    }
    return _json(encode_json(told))


async def drift(request: Request) -> Response:
    """How far scores and features are from those of calibration."""
    return _json(encode_json(admitted(request.scope, auth.READ)[0].registry.current.drift.report()))


async def alive(_: Request) -> Response:
    """That the process runs."""
    return _json(b'{"status":"alive"}')


async def ready(request: Request) -> Response:
    """Whether the store can be read now."""
    service: Service = request.app.state.service
    if not await service.is_ready():
        raise RequestError(503, "store", "the store cannot be reached", retry_after=1.0)
    return _json(b'{"status":"ready"}')


async def metrics(request: Request) -> Response:
    """What was counted, for Prometheus."""
    service, _, _ = admitted(request.scope, auth.READ, paced=False)
    shared = service.settings.metrics_dir if service.settings.workers > 1 else None
    return Response(
        service.metrics.text(shared), headers={**_HEADERS, "Content-Type": CONTENT_TYPE}
    )


async def openapi(request: Request) -> Response:
    """The interface described for machines."""
    return _json(encode_json(_described(request)))


async def docs(request: Request) -> Response:
    """The interface described for people."""
    text = page(_described(request))
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(text, media_type="text/html", headers={**_HEADERS, **policy})


async def home(_: Request) -> Response:
    """Where to look first."""
    return RedirectResponse("docs", headers=_HEADERS)


def _described(request: Request) -> dict[str, Any]:
    service, _, _ = admitted(request.scope, None)
    return describe(service.registry.current.decoder, not request.app.state.authenticator.is_open)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, {**_HEADERS, **(headers or {})}, "application/json")


async def _refuse(request: Request, problem: Exception) -> Response:
    status, said, retry_after = problem_of(problem)
    request.app.state.service.metrics.refused.labels(said.kind).inc()
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in _BEFORE_THE_BODY:
        headers["Connection"] = "close"  # or a client could go on sending what nobody reads
    tell_operator(problem)
    return _json(encode_json(ErrorResponse(said)), status, headers)


async def _refuse_http(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        raise problem
    kind = {404: "not_found", 405: "not_allowed"}.get(problem.status_code, "http")
    request.app.state.service.metrics.refused.labels(kind).inc()
    return _json(
        encode_json(ErrorResponse(ErrorDetail(kind, str(problem.detail)))),
        problem.status_code,
        {**(problem.headers or {}), "Connection": "close"},
    )


async def _gone(_: Request, __: Exception) -> Response:
    """The client has gone; nobody reads this."""
    return Response(status_code=400)
