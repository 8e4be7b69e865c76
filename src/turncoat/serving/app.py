"""The HTTP application: every route, declared once with its description, and its handler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from turncoat import __version__
from turncoat.serving.auth import LABEL, READ, SCORE, ApiKeyAuthenticator, RateLimiter, load_keys
from turncoat.serving.batch import BatchEndpoint
from turncoat.serving.decoding import LabelRequest, decode_label
from turncoat.serving.drift import DriftReport
from turncoat.serving.metrics import CONTENT_TYPE
from turncoat.serving.middleware import (
    ANY_SCOPE,
    AuthMiddleware,
    ErrorMiddleware,
    LimitMiddleware,
    RequestError,
)
from turncoat.serving.openapi import LINES, TEXT, TRANSACTION, Operation, describe, render_page
from turncoat.serving.responses import (
    CustomerResponse,
    DuplicateResponse,
    LabelResponse,
    ScoredTransaction,
    encode_json,
)
from turncoat.serving.service import Service
from turncoat.serving.settings import ServiceSettings


class Endpoint(NamedTuple):
    """A route: its handler, who may use it, and its description in OpenAPI."""

    path: str
    handler: Callable[[Request], Awaitable[Response]] | None  # None: the batch endpoint
    scope: str | None = None  # of the API key; None lets everyone in
    operation: Operation | None = None  # None leaves it out of OpenAPI
    method: str = "GET"
    is_rate_limited: bool = True


class _Responder:
    """Calls a handler and sends its response. Errors pass through to ErrorMiddleware."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive))
        await response(scope, receive, send)


class _AnyText(Convertor[str]):
    """Matches the rest of a path: a customer may have any name."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", _AnyText())


def create_app(
    settings: ServiceSettings, is_stopping: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application, with its model loaded and its store open.

    `is_stopping` tells batches that the server is shutting down.
    """
    service = Service(settings)
    authenticator = ApiKeyAuthenticator(load_keys(settings.keys_file))
    rate_limiter = RateLimiter(settings.rate_limit_per_s)
    batch = BatchEndpoint(service, rate_limiter, is_stopping)

    @contextlib.asynccontextmanager
    async def run_service(_: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    def build_route(endpoint: Endpoint) -> Route:
        middleware = []
        if endpoint.scope is not None:
            arguments = (authenticator, rate_limiter, endpoint.scope, endpoint.is_rate_limited)
            middleware.append(Middleware(AuthMiddleware, *arguments))
        if endpoint.handler is not None:
            has_body = endpoint.method == "POST"
            middleware.append(Middleware(LimitMiddleware, settings, has_body))
        handler = batch if endpoint.handler is None else _Responder(endpoint.handler)
        return Route(endpoint.path, handler, methods=[endpoint.method], middleware=middleware)

    async def raise_error(_: Request, error: Exception) -> Response:
        raise error  # to ErrorMiddleware, the one place where responses of errors are built

    app = Starlette(
        routes=[build_route(endpoint) for endpoint in ENDPOINTS],
        middleware=[Middleware(ErrorMiddleware, service.metrics.count_error)],
        exception_handlers={HTTPException: raise_error},
        lifespan=run_service,
    )
    app.router.redirect_slashes = False  # a redirect would lead past the TLS of a proxy
    app.state.service, app.state.authenticator = service, authenticator
    return app


async def score(request: Request) -> Response:
    """Score one transaction."""
    service: Service = request.app.state.service
    started = time.perf_counter()
    transaction = service.registry.current.decoder.decode(request.scope["body"])
    response = await service.submit(transaction, sort_time=transaction.time)
    service.metrics.duration.observe(time.perf_counter() - started)
    return Response(response.body, media_type="application/json")


async def label(request: Request) -> Response:
    """Store the label of a transaction."""
    body = decode_label(request.scope["body"])
    service: Service = request.app.state.service
    return _json(await service.label(str(body.customer), str(body.id), int(body.label)))


async def customer(request: Request) -> Response:
    """Return the stored belief and the latest transactions of a customer."""
    found = await request.app.state.service.customer(request.path_params["customer"])
    if found is None:
        raise RequestError(404, "not_found", "no transaction of this customer was scored yet")
    return _json(found)


async def model(request: Request) -> Response:
    """Return the model in service, its regimes, and an example transaction."""
    served = request.app.state.service.registry.current
    detector, regimes = served.detector, served.detector.regimes
    low, high = regimes.interval()
    return _json(
        {
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
    )


async def drift(request: Request) -> Response:
    """Return how far scores and features have moved since calibration."""
    return _json(request.app.state.service.registry.current.drift.report())


async def alive(_: Request) -> Response:
    """Return 200 as long as the process runs."""
    return _json({"status": "alive"})


async def ready(request: Request) -> Response:
    """Return 200 if the store can be read and written."""
    if not await request.app.state.service.is_ready():
        raise RequestError(503, "store", "the store cannot be read and written", retry_after_s=1.0)
    return _json({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    service: Service = request.app.state.service
    text = service.metrics.render(service.settings.metrics_dir)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return _json(_describe(request))


async def docs(request: Request) -> Response:
    """Return the OpenAPI document as a page."""
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(render_page(_describe(request)), media_type="text/html", headers=policy)


async def home(_: Request) -> Response:
    """Redirect to the page."""
    return RedirectResponse("docs")


def _json(value: Any) -> Response:
    return Response(encode_json(value), media_type="application/json")


def _describe(request: Request) -> dict[str, Any]:
    state = request.app.state
    endpoints = [
        (one.method.lower(), one.path.replace(":any", ""), one.scope, one.operation)
        for one in ENDPOINTS
        if one.operation is not None
    ]
    decoder = state.service.registry.current.decoder
    return describe(endpoints, decoder, state.authenticator.needs_key)


_SCORE = Operation(
    "Score one transaction", (ScoredTransaction, DuplicateResponse), TRANSACTION, (409, 422, 503)
)
_BATCH = Operation(
    "Score many transactions, one JSON object per line. "
    "Each line is answered by a line, in order; a line in error by its error",
    LINES,
    LINES,
)
_LABELS = Operation("Report a label", LabelResponse, LabelRequest, (404, 422, 503))
_CUSTOMER = Operation("The stored belief of a customer", CustomerResponse, errors=(404, 503))
_MODEL = Operation("The model, its regimes and an example transaction", dict)
_DRIFT = Operation("Drift of scores and features since calibration", DriftReport)
_METRICS = Operation("Metrics for Prometheus", TEXT)
_READY = Operation("Whether the store can be read and written", dict, errors=(503,))

ENDPOINTS = (
    Endpoint("/v1/score", score, SCORE, _SCORE, "POST"),
    Endpoint("/v1/score/batch", None, SCORE, _BATCH, "POST"),
    Endpoint("/v1/labels", label, LABEL, _LABELS, "POST"),
    Endpoint("/v1/customers/{customer:any}", customer, READ, _CUSTOMER),
    Endpoint("/v1/model", model, READ, _MODEL),
    Endpoint("/v1/drift", drift, READ, _DRIFT),
    Endpoint("/livez", alive, None, Operation("Whether the process runs", dict)),
    Endpoint("/readyz", ready, None, _READY),
    Endpoint("/metrics", metrics, READ, _METRICS, is_rate_limited=False),
    Endpoint("/openapi.json", openapi, ANY_SCOPE),
    Endpoint("/docs", docs, ANY_SCOPE),
    Endpoint("/", home),
)
