"""The example client repeats a transaction until it gets a response."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from examples.live_client import score


@pytest.fixture
def service():
    """Yield the URL of a server that fails in two ways first, and the bodies it received."""
    bodies: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            if len(bodies) == 1:
                return  # no response at all
            status = 503 if len(bodies) == 2 else 422 if body["id"] == "bad" else 200
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(json.dumps({"probability": 0.25}).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_the_client_retries_with_the_same_id_and_stops_on_an_error(service):
    url, bodies = service
    assert score(url, {"id": "a"}) == {"probability": 0.25}
    assert bodies == [{"id": "a"}] * 3
    with pytest.raises(SystemExit, match=r"refused: .*probability"):
        score(url, {"id": "bad"})
    assert len(bodies) == 4
