"""The service's HTTP stack with nothing behind it: the same server and framework.

Run by the benchmark as `python -m benchmarks.service.constant PORT WORKERS BYTES [MODEL]`. It reads
each body and answers a constant of so many bytes. With a model's folder it also decodes and checks
each body as a transaction of that model.
"""

from __future__ import annotations

import sys
from functools import partial

from granian import Granian
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turncoat import load
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.server import build_server_options
from turncoat.serving.settings import ServiceSettings


def create_app(n_bytes: int, model: str | None) -> Starlette:
    answer = b'{"probability":"' + b"0" * n_bytes + b'"}'
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
    port, workers, n_bytes = map(int, sys.argv[1:4])
    model = sys.argv[4] if len(sys.argv) > 4 else None
    settings = ServiceSettings(model_path="", store_url="memory://", port=port, workers=workers)
    server = Granian("constant", **build_server_options(settings))
    server.serve(target_loader=partial(create_app, n_bytes, model), wrap_loader=False)


if __name__ == "__main__":
    main()
