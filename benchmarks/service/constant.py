"""The service's HTTP stack without scoring: what the service is compared with.

Run by the benchmark as `python -m benchmarks.service.constant PORT WORKERS BYTES [MODEL]`. With a
model's folder it is the service itself (server, framework, middleware, decoding), except that it
answers a constant of so many bytes instead of scoring and storing. Without a model it is the bare
server and framework: it reads each body and answers.
"""

from __future__ import annotations

import sys
from functools import partial

from granian import Granian
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turncoat.serving.app import create_app
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.server import build_server_options
from turncoat.serving.settings import ServiceSettings


def create_bare_app(answer: bytes) -> Starlette:
    async def score(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")

    async def ready(_: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/v1/score", score, methods=["POST"]), Route("/readyz", ready)])


def create_constant_app(answer: bytes, settings: ServiceSettings) -> Starlette:
    response = ScoredResponse(answer, 0.0)

    async def submit(*_: object, **__: object) -> ScoredResponse:
        return response

    app = create_app(settings)
    app.state.service.batcher.submit = submit
    return app


def main() -> None:
    port, workers, n_bytes = map(int, sys.argv[1:4])
    answer = b'{"probability":"' + b"0" * n_bytes + b'"}'
    folder = sys.argv[4] if len(sys.argv) > 4 else ""
    settings = ServiceSettings(
        model_path=folder, store_url="memory://", create_store=True, port=port, workers=workers
    )
    create = partial(create_constant_app, answer, settings)
    load = create if folder else partial(create_bare_app, answer)
    server = Granian("constant", **build_server_options(settings))
    server.serve(target_loader=load, wrap_loader=False)


if __name__ == "__main__":
    main()
