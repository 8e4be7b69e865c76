"""The HTTP application: all endpoints, and their handlers. A docstring is the route's summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from turncoat import __version__
from turncoat.scoring.drift import DriftReport
from turncoat.serving import responses
from turncoat.serving.auth import LABEL, READ, SCORE, ApiKeyAuthenticator, RateLimiter, load_keys
from turncoat.serving.batch import LabelBatchEndpoint, ScoreBatchEndpoint
from turncoat.serving.decoding import LabelRequest
from turncoat.serving.metrics import CONTENT_TYPE
from turncoat.serving.middleware import ANY_KEY, AuthMiddleware, ErrorMiddleware, LimitedHandler
from turncoat.serving.openapi import (
    Endpoint,
    LabelLines,
    Lines,
    ServedTransaction,
    Text,
    describe,
    render_page,
)
from turncoat.serving.service import Service
from turncoat.serving.settings import ServiceSettings


class _AnyText(PathConvertor):
    """Matches the rest of a path, line breaks too: a customer may have any name."""

    regex = r"[\s\S]+"


register_url_convertor("any", _AnyText())


def create_app(
    settings: ServiceSettings, is_stopping: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application, model and store opened; `is_stopping` tells batches to end."""
    service = Service(settings)
    authenticator = ApiKeyAuthenticator(load_keys(settings.keys_file))
    rate_limiter = RateLimiter(settings.rate_limit_per_s)

    def build_route(endpoint: Endpoint) -> Route:
        layers = []
        if endpoint.key_scope is not None:
            limiter = rate_limiter if endpoint.is_rate_limited else RateLimiter(0.0)
            layers.append(Middleware(AuthMiddleware, authenticator, limiter, endpoint.key_scope))
        if endpoint.handler in (ScoreBatchEndpoint, LabelBatchEndpoint):
            app: ASGIApp = endpoint.handler(service, rate_limiter, is_stopping)
        else:
            app = LimitedHandler(endpoint.handler, settings, endpoint.body is not None)
        return Route(endpoint.path, app, methods=[endpoint.method], middleware=layers)

    async def raise_error(_: Request, error: Exception) -> Response:
        try:
            raise error  # to ErrorMiddleware, the one place where responses of errors are built
        finally:
            del error  # a cycle with its traceback would keep the connection open

    app = Starlette(
        routes=[build_route(endpoint) for endpoint in ENDPOINTS],
        middleware=[Middleware(ErrorMiddleware, service.metrics.count_error)],
        exception_handlers={HTTPException: raise_error},
        lifespan=lambda _: service.running(),
    )
    app.router.redirect_slashes = False  # a redirect would lead past the TLS of a proxy
    app.state.service, app.state.authenticator = service, authenticator
    return app


async def score(request: Request) -> Response:
    """Score one transaction."""
    service: Service = request.app.state.service
    started = time.perf_counter()
    transaction = service.registry.current.decoder.decode(request.scope["body"])
    response = await service.batcher.submit(transaction, sort_time=transaction.time)
    service.metrics.duration.observe(time.perf_counter() - started)
    return Response(response.body, media_type="application/json")


async def label(request: Request) -> Response:
    """Report a label."""
    service: Service = request.app.state.service
    decoded = await service.decode_label(request.scope["body"])
    return _json(await service.batcher.submit(decoded))


async def customer(request: Request) -> Response:
    """The stored belief of a customer."""
    found = await request.app.state.service.customer(request.path_params["customer"])
    if found is None:
        raise HTTPException(404, "no transaction of this customer was scored yet")
    return _json(found)


async def model(request: Request) -> Response:
    """The model, its regimes and an example transaction."""
    served = request.app.state.service.registry.current
    detector, regimes = served.detector, served.detector.regimes
    low, high = regimes.interval()
    shown = {
        "model": detector.digest_,
        "calibration": detector.calibration_.number,
        "turncoat": __version__,
        "tier": type(detector.model_).__name__,
        "kind": detector.kind,
        "supervision": detector.supervision,
        "fraud_regime": regimes.fraud_state,
        "measured_on": f"{regimes.part} part, {regimes.mode}",
        "regimes": [
            {
                "regime": k,
                "share_of_transactions": float(regimes.occupancy[k]),
                "fraud_rate": float(regimes.mean_rates[k]),
                "interval": [float(low[k]), float(high[k])],
                "stays": float(regimes.stickiness[k]),
            }
            for k in range(regimes.n_states)
        ],
        "example": served.decoder.example,
    }
    return _json(shown)


async def drift(request: Request) -> Response:
    """Drift of scores and features since calibration."""
    return _json(request.app.state.service.registry.current.drift.report())


async def alive(_: Request) -> Response:
    """Whether the process runs."""
    return _json({"status": "alive"})


async def ready(request: Request) -> Response:
    """Whether the store can be read and written."""
    if not await request.app.state.service.is_ready():
        raise HTTPException(503, "the store cannot be read and written")
    return _json({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
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
    return Response(responses.encode_json(value), media_type="application/json")


def _describe(request: Request) -> dict[str, Any]:
    state = request.app.state
    decoder = state.service.registry.current.decoder
    return describe(ENDPOINTS, decoder, state.authenticator.needs_key)


_RECORD, _LABELED = responses.CustomerResponse, responses.LabelResponse
_SCORED = responses.ScoredTransaction | responses.DuplicateResponse

ENDPOINTS = (
    Endpoint("POST", "/v1/score", score, SCORE, _SCORED, ServedTransaction, (409, 422, 503)),
    Endpoint("POST", "/v1/score/batch", ScoreBatchEndpoint, SCORE, Lines, Lines),
    Endpoint("POST", "/v1/labels", label, LABEL, _LABELED, LabelRequest, (404, 422, 503)),
    Endpoint("POST", "/v1/labels/batch", LabelBatchEndpoint, LABEL, LabelLines, LabelLines),
    Endpoint("GET", "/v1/customers/{customer:any}", customer, READ, _RECORD, errors=(404, 503)),
    Endpoint("GET", "/v1/model", model, READ, dict),
    Endpoint("GET", "/v1/drift", drift, READ, DriftReport),
    Endpoint("GET", "/livez", alive, None, dict),
    Endpoint("GET", "/readyz", ready, None, dict, errors=(503,)),
    Endpoint("GET", "/metrics", metrics, READ, Text, is_rate_limited=False),
    Endpoint("GET", "/openapi.json", openapi, ANY_KEY),
    Endpoint("GET", "/docs", docs, ANY_KEY),
    Endpoint("GET", "/", home),
)
