"""Any request gets a response or a clean error. `make soak` sends 100,000 of them."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from tests.scoring.detectors import detector
from tests.serving.helpers import bundle, client, rows_of
from tests.serving.process import Server, running
from turncoat.serving.auth import create_key
from turncoat.serving.decoding import (
    FieldError,
    InvalidJsonError,
    Transaction,
    TransactionDecoder,
    decode_label,
)

SOAK = int(os.environ.get("TURNCOAT_SOAK", "0"))
DECODED = SOAK or 1500  # inputs for the decoder
SENT = SOAK or 4000  # mutated requests
DESCRIBED = SOAK // 10 or 100  # for each operation that the document describes

FORM = TransactionDecoder(detector("shop"))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NEAR = st.dictionaries(
    st.sampled_from([*FORM.type.__struct_encode_fields__, "fraud", "other"]), ANYTHING, max_size=12
)
QUIET: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
    "derandomize": True,
}


@settings(max_examples=DECODED, **QUIET)
@given(
    st.one_of(
        st.binary(max_size=200),
        ANYTHING.map(lambda thing: json.dumps(thing).encode()),
        NEAR.map(lambda thing: json.dumps(thing).encode()),
    )
)
def test_the_decoders_accept_or_refuse(body: bytes) -> None:
    for decode in (FORM.decode, lambda body: decode_label(body, FORM.plan.schema)):
        try:
            found: Any = decode(body)
        except (FieldError, InvalidJsonError):
            continue
        if isinstance(found, Transaction):
            assert found.id
            assert found.customer
            assert abs(found.time) <= 1e11


@settings(max_examples=DECODED, **QUIET)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(FORM.type.__struct_encode_fields__, ANYTHING))
)
def test_what_the_decoder_accepts_the_detector_scores_or_refuses(row: dict[str, Any]) -> None:
    body = json.dumps({**rows_of("shop")[0], **row}).encode()
    try:
        accepted = FORM.decode(body)
    except (FieldError, InvalidJsonError):
        return
    from turncoat import DataError

    made = detector("shop")
    try:
        _, score = made.score_one(None, accepted.row)
    except DataError:
        return
    assert 0 <= score.interval[0] <= score.probability <= score.interval[1] <= 1
    msgspec.json.encode(score.probability)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with client(bundle("shop", tmp_path_factory.mktemp("fuzz")), raises=False) as service:
        yield service


def mutated(rng: random.Random, body: bytes) -> bytes:
    """A few bytes, or a few pieces, put elsewhere."""
    data = bytearray(body)
    for _ in range(rng.randint(0, 4)):
        place = rng.randrange(len(data) + 1)
        choice = rng.randrange(5)
        if choice == 0 and data:
            data[place % len(data)] = rng.randrange(256)
        elif choice == 1:
            del data[place : place + rng.randint(1, 30)]
        elif choice == 2:
            data[place:place] = rng.choice(
                [
                    b"null",
                    b"1e400",
                    b"-0",
                    b'"',
                    b"{",
                    b"[[",
                    b"\xff",
                    b"\x00",
                    b"\\u0000",
                    b"\n",
                    b"NaN",
                    b"9" * 400,
                ]
            )
        elif choice == 3:
            data[place:place] = data[: rng.randint(0, 40)]
        else:
            data = data[: max(place, 1)]
    return bytes(data)


def test_mutated_requests_never_meet_an_internal_error(talking: TestClient) -> None:
    rng = random.Random(11)
    rows = rows_of("shop")
    statuses: Counter[int] = Counter()
    for _ in range(SENT):
        row = dict(rng.choice(rows))
        if rng.random() < 0.5:
            row["id"] = rng.choice([rng.randrange(10**6), "x" * rng.randrange(400), -1, 2**70])
        path = rng.choice(["/v1/score", "/v1/score", "/v1/score/batch", "/v1/labels"])
        if path == "/v1/labels":
            row = {
                "id": row["id"],
                "customer": row["who"],
                "label": rng.choice([0, 1, 2, True, None]),
            }
        body = mutated(rng, json.dumps(row).encode())
        response = talking.post(path, content=body)
        statuses[response.status_code] += 1
        assert response.status_code in (200, 400, 404, 422), (
            response.status_code,
            path,
            body,
            response.text,
        )
        if path != "/v1/score/batch":
            msgspec.json.decode(response.content)
    assert min(statuses[code] for code in (200, 400, 404, 422)) > 0
    for path in (
        "/v1/customers/" + "%00",
        "/v1/customers/" + "x" * 3000,
        "/v1/customers/a/b?c=%ff",
        "/v1/customers/",
    ):
        assert talking.get(path).status_code in (200, 404, 422)


@schemathesis.serializer("application/x-ndjson")
def _lines(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("with_keys", [False, True])
def test_the_service_is_as_its_document_describes(with_keys: bool, tmp_path: Path) -> None:
    secret, key = create_key("all", ["score", "read", "label"])
    (tmp_path / "keys").write_text(f"{key}\n")
    keys = ("--keys", str(tmp_path / "keys")) if with_keys else ()
    with running(bundle("shop", tmp_path), "memory://", *keys) as server:
        _hold_to_its_document(server, {"Authorization": f"Bearer {secret}"} if with_keys else {})


def _hold_to_its_document(server: Server, headers: dict[str, str]) -> None:
    schema = schemathesis.openapi.from_url(
        f"http://127.0.0.1:{server.port}/openapi.json", headers=headers
    )
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {
        "/v1/score",
        "/v1/score/batch",
        "/v1/labels",
        "/v1/customers/{customer}",
    }
    for operation in operations:

        @settings(max_examples=DESCRIBED, **QUIET)
        @given(operation.as_strategy())
        def as_described(case: schemathesis.Case) -> None:
            case.call_and_validate(
                headers=headers, excluded_checks=[positive_data_acceptance]
            )  # not every text is a time

        as_described()
