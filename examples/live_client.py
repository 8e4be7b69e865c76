"""Scores transactions with a running service, so that none is lost and none counts twice, whatever happens on the way.

`python -m examples.live_client payments.jsonl` sends a file of JSON objects, one a line, and prints the answers. A key, if the service
wants one, is taken from the environment variable TURNCOAT_KEY.
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

LATER = (429, 503)  # the service says when to try again


def score(url: str, transaction: dict[str, Any], tries: int = 60) -> dict[str, Any]:
    """The answer to a transaction. The next of the same customer may be sent once it is there."""
    key = os.environ.get("TURNCOAT_KEY")
    headers = {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    body = json.dumps(transaction).encode()
    for _ in range(tries):
        try:
            with urlopen(Request(f"{url}/v1/score", body, headers), timeout=30) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except HTTPError as refusal:
            if refusal.code not in LATER:
                raise SystemExit(f"refused: {refusal.read().decode()}") from refusal
            time.sleep(float(refusal.headers.get("Retry-After", 1)))
        except (
            OSError,
            http.client.HTTPException,
        ):  # whether it was counted is open: with the same id it can be sent again
            time.sleep(0.5)
    raise SystemExit(f"no answer after {tries} tries")


def main() -> None:
    """Send a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON objects, one a line, in the order of time")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    asked = parser.parse_args()
    with asked.file.open() as lines:
        for line in lines:
            print(json.dumps(score(asked.url, json.loads(line))))


if __name__ == "__main__":
    main()
