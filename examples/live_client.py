"""Score transactions with a running service so that each one counts exactly once.

`python -m examples.live_client payments.jsonl` sends a file of JSON objects, one per line, and
prints the responses. If the service needs a key, put it in the environment variable TURNCOAT_KEY.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

RETRY_STATUSES = (429, 503)  # the Retry-After header says when to try again


def score(url: str, transaction: dict[str, Any], max_attempts: int = 60) -> dict[str, Any]:
    """Return the response to a transaction. Wait for it before sending the customer's next one."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("TURNCOAT_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps(transaction).encode()
    for _ in range(max_attempts):
        try:
            with urlopen(Request(f"{url}/v1/score", body, headers), timeout=30) as response:
                scored: dict[str, Any] = json.load(response)
                return scored
        except HTTPError as error:
            if error.code not in RETRY_STATUSES:
                raise SystemExit(f"refused: {error.read().decode()}") from error
            time.sleep(float(error.headers.get("Retry-After", 1)))
        except (OSError, http.client.HTTPException):
            # The transaction may have been counted. The same id makes sending it again safe.
            time.sleep(0.5)
    raise SystemExit(f"no response after {max_attempts} attempts")


def main() -> None:
    """Send a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON objects, one per line, in time order")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()
    with arguments.file.open() as lines:
        for line in lines:
            print(json.dumps(score(arguments.url, json.loads(line))))


if __name__ == "__main__":
    main()
