"""The service's stack with nothing behind it: same server, same protocol, same route, the body read, a constant answered.

Run by the benchmark as `python -m benchmarks.service.constant PORT WORKERS BYTES [MODEL]`; with a model's folder, bodies are also
decoded and checked as that model's transactions.
"""

from __future__ import annotations

import os
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turncoat import load
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.server import server_options
from turncoat.serving.settings import ServiceSettings

_BYTES, _MODEL = "TURNCOAT_BENCHMARK_BYTES", "TURNCOAT_BENCHMARK_MODEL"


def app() -> Starlette:
    answer = b'{"probability":"' + b"0" * int(os.environ[_BYTES]) + b'"}'
    model = os.environ.get(_MODEL)
    decode = TransactionDecoder(load(model)).decode if model else None

    async def score(request: Request) -> Response:
        body = await request.body()
        if decode is not None:
            decode(body)
        return Response(answer, media_type="application/json")

    async def ready(_: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/v1/score", score, methods=["POST"]), Route("/readyz", ready)])


def main() -> None:
    port, workers, length = map(int, sys.argv[1:4])
    os.environ[_BYTES] = str(length)
    if len(sys.argv) > 4:
        os.environ[_MODEL] = sys.argv[4]
    options = server_options(ServiceSettings(model_path="", store_url="memory://", port=port))
    uvicorn.run(
        "benchmarks.service.constant:app",
        factory=True,
        workers=workers,
        **{**options, "lifespan": "off"},
    )


if __name__ == "__main__":
    main()
