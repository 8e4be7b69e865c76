"""The routes of the service: responses, errors, access and limits."""

from __future__ import annotations

import asyncio
import json
from math import inf, nan
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.scoring.detectors import detector
from tests.serving.helpers import bundle, client, rows_of, score_by_hand
from turncoat import BundleError, ConfigError
from turncoat.errors import StoreError
from turncoat.serving.app import create_app
from turncoat.serving.auth import (
    ApiKeyAuthenticator,
    RateLimiter,
    create_key,
    load_keys,
    parse_keys,
)
from turncoat.serving.batch import ScoreBatchEndpoint
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.records import customer_key, pack_record, unpack_record
from turncoat.serving.service import Service, _decode_again
from turncoat.serving.settings import ServiceSettings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bundle("shop", tmp_path)


def error(response: Any) -> tuple[int, str, str | None]:
    said = response.json()["error"]
    assert said["message"]
    return response.status_code, said["kind"], said.get("field")


# ------------------------------------------------------------------------------- responses


def test_single_and_batch_responses_equal_the_library(model: Path) -> None:
    rows, made = rows_of("shop")[:60], detector("shop")
    form = TransactionDecoder(made)
    scores, _ = score_by_hand(made, [form.decode(json.dumps(row).encode()) for row in rows])
    expected = [score.probability for score in scores]
    with client(model) as api:
        one_by_one = [api.post("/v1/score", json=row).json() for row in rows]
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    with client(model) as api:
        response = api.post("/v1/score/batch", content=lines)
    batch = [json.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert [one["probability"] for one in one_by_one] == expected
    assert batch == one_by_one
    first = one_by_one[0]
    assert first["belief_source"] == "new"
    assert first["model"] == made.digest_
    assert first["calibration"] == 0
    assert first["interval"][0] <= first["probability"] <= first["interval"][1]
    assert sum(first["belief"]) == pytest.approx(1.0)
    assert first["reasons"][0].keys() == {"source", "text", "log_odds"}


def test_the_model_route_gives_an_example_that_scores(tmp_path: Path) -> None:
    for name in ("shop", "handbook", "ieee"):
        (tmp_path / name).mkdir()
        with client(bundle(name, tmp_path / name)) as api:
            told = api.get("/v1/model").json()
            assert told["model"] == detector(name).digest_
            assert len(told["regimes"]) == 3
            rates = [regime["fraud_rate"] for regime in told["regimes"]]
            assert rates == detector(name).regimes.mean_rates.tolist()
            assert told["fraud_regime"] == detector(name).regimes.fraud_state
            answer = api.post("/v1/score", json=told["example"])
            assert answer.status_code == 200, answer.text


def test_a_scored_customer_can_be_read(model: Path) -> None:
    rows = [row for row in rows_of("shop") if row["who"] == "c4"][:20]
    with client(model) as api:
        assert error(api.get("/v1/customers/c4")) == (404, "not_found", None)
        answers = [api.post("/v1/score", json=row).json() for row in rows]
        known = api.get("/v1/customers/c4").json()
    assert known["n_seen"] == 20
    assert known["belief"] == answers[-1]["belief"]
    assert known["regime"] == answers[-1]["regime"]
    assert known["recent"] == [
        {"id": one["id"], "probability": one["probability"]} for one in reversed(answers[-16:])
    ]
    assert known["is_current"]
    assert known["last_time"] == rows[-1]["at"]


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"surprise": 1}, "surprise"),
        ({"paid": "12.5"}, "paid"),
        ({"paid": True}, "paid"),
        ({"paid": [1]}, "paid"),
        ({"at": None}, "at"),
        ({"at": "yesterday"}, "at"),
        ({"at": 1e300}, "at"),
        ({"at": rows_of("shop")[-1]["at"] * 1000}, "at"),  # milliseconds
        ({"at": "2026-11-15 12:00:00"}, "at"),  # of a file with seconds since its own beginning
        ({"who": None}, "who"),
        ({"who": ""}, "who"),
        ({"who": "x" * 300}, "who"),
        ({"id": 1.5}, "id"),
        ({"device": {"kind": "phone"}}, "device"),
        ({"shop": "s" * 300}, "shop"),
        ({"fraud": 1}, "fraud"),
        ({"paid": 1e300}, None),
    ],
)
def test_an_invalid_field_is_named(model: Path, change: dict[str, Any], field: str | None) -> None:
    with client(model) as api:
        response = api.post("/v1/score", json={**rows_of("shop")[0], **change})
        if change == {"paid": 1e300}:
            assert response.status_code in (200, 422)
        else:
            assert error(response) == (422, "invalid", field)
        assert api.get("/v1/customers/c1").status_code == 404


@pytest.mark.parametrize("missing", ["who", "at", "id"])
def test_only_required_fields_must_be_sent(model: Path, missing: str) -> None:
    row = rows_of("shop")[0]
    with client(model) as api:
        assert error(
            api.post("/v1/score", json={k: v for k, v in row.items() if k != missing})
        ) == (422, "invalid", missing)
        bare = {k: v for k, v in row.items() if k in ("who", "at", "id")}
        nulls = {
            **dict.fromkeys(("paid", "age", "kind", "device", "town", "shop")),
            **bare,
            "id": "other",
            "who": "c99",
        }
        first, second = api.post("/v1/score", json=bare), api.post("/v1/score", json=nulls)
    assert first.status_code == second.status_code == 200
    assert first.json()["probability"] == second.json()["probability"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"nan",
        b"\xff\xfe",
        b'{"at":NaN}',
        b'{"at": 1e999}',
        b"[" * 5000,
        b'"\\ud800"',
    ],
)
def test_invalid_bodies_are_refused(model: Path, body: bytes) -> None:
    with client(model) as api:
        for path in ("/v1/score", "/v1/labels"):
            assert api.post(path, content=body).status_code in (400, 422)
        batch = api.post("/v1/score/batch", content=body)
        assert batch.status_code == 200
        assert all("error" in json.loads(line) for line in batch.text.splitlines())


def test_invalid_unicode_is_refused(model: Path) -> None:
    with client(model) as api:
        response = api.post("/v1/score", content=b'{"id":"a","who":"\\ud800","at":1}')
        assert response.status_code in (400, 422)


def test_batch_errors_have_line_numbers_and_other_lines_are_scored(model: Path) -> None:
    rows = [json.dumps(row) for row in rows_of("shop")[:4]]
    text = "\n".join([rows[0], "{", "", rows[1], '{"paid": "x"}', rows[2]])
    with client(model) as api:
        found = [
            json.loads(line)
            for line in api.post("/v1/score/batch", content=text.encode()).text.splitlines()
        ]
    assert [one.get("line") for one in found] == [None, 2, None, 5, None]
    assert [one["id"] for one in found if "id" in one] == [
        str(row["id"]) for row in rows_of("shop")[:3]
    ]


@pytest.mark.parametrize("max_lines", [0, 10, 10**9])
def test_a_batch_is_answered_whole_however_small_the_buffer(
    model: Path, max_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turncoat.serving.batch._MAX_BUFFERED_LINES", max_lines)
    lines = [json.dumps({**rows_of("shop")[0], "id": i}) for i in range(300)]
    with client(model) as api:
        text = api.post("/v1/score/batch", content="\n".join(lines)).text
    assert [json.loads(line)["id"] for line in text.splitlines()] == [str(i) for i in range(300)]


def test_a_batch_is_read_while_its_responses_wait_as_far_as_the_buffer_reaches(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends everything before it reads would otherwise wait for ever."""
    lines = [json.dumps({**rows_of("shop")[0], "id": i}).encode() + b"\n" for i in range(400)]

    async def read_before_the_client_reads(max_lines: int) -> tuple[int, int, int]:
        monkeypatch.setattr("turncoat.serving.batch._MAX_BUFFERED_LINES", max_lines)
        settings = ServiceSettings(
            model_path=str(model), store_url="memory://", create_store=True, request_timeout_s=60
        )
        service, may_read = Service(settings), asyncio.Event()
        endpoint = ScoreBatchEndpoint(service, RateLimiter(0.0), lambda: False)
        coming, sent = iter(lines), b""

        async def receive() -> Any:
            if (line := next(coming, None)) is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": line, "more_body": line is not lines[-1]}

        async def send(message: Any) -> None:
            nonlocal sent
            if "body" in message:
                await may_read.wait()
            sent += message.get("body", b"")

        async with service.running():
            answering = asyncio.create_task(endpoint({"caller": "local"}, receive, send))
            n_before, n_read = -1, 0
            while n_read > n_before:  # until nothing moves
                n_before = n_read
                await asyncio.sleep(0.5)
                n_read = len(lines) - coming.__length_hint__()
            may_read.set()
            await answering
        return n_read, sent.count(b"\n"), endpoint.n_buffered_lines

    assert asyncio.run(read_before_the_client_reads(10**9)) == (400, 400, 0)
    n_read, n_sent, n_buffered = asyncio.run(read_before_the_client_reads(20))
    assert n_read < 200
    assert (n_sent, n_buffered) == (400, 0)


def test_too_long_bodies_and_batches_are_refused(model: Path) -> None:
    row = rows_of("shop")[0]
    with client(model, max_body_bytes=2000, max_batch_lines=3) as api:
        long = json.dumps({**row, "town": "x" * 3000}).encode()
        assert error(api.post("/v1/score", content=long))[:2] == (413, "too_large")
        assert error(
            api.post("/v1/score", content=(long[i : i + 100] for i in range(0, len(long), 100)))
        )[:2] == (413, "too_large")
        endless = api.post("/v1/score/batch", content=b"x" * 10_000)
        assert json.loads(endless.text)["error"]["kind"] == "too_large"
        many = b"\n".join(json.dumps({**row, "id": i}).encode() for i in range(6))
        found = [
            json.loads(line) for line in api.post("/v1/score/batch", content=many).text.splitlines()
        ]
        assert ["error" in one for one in found] == [False, False, False, True]


def test_unknown_paths_and_methods_are_json_errors(model: Path) -> None:
    with client(model) as api:
        assert error(api.get("/nothing")) == (404, "not_found", None)
        assert error(api.get("/v1/score")) == (405, "method_not_allowed", None)


# ------------------------------------------------------------------------------- labels


def test_a_label_conditions_the_belief_once_and_only_for_the_latest_transaction(
    model: Path,
) -> None:
    rows = [row for row in rows_of("shop") if row["who"] == "c5"][:3]
    made = detector("shop")
    with client(model) as api:
        for row in rows:
            api.post("/v1/score", json=row)
        before = api.get("/v1/customers/c5").json()["belief"]
        body = {"id": rows[-1]["id"], "customer": "c5", "label": 1}
        first = api.post("/v1/labels", json=body).json()
        after = api.get("/v1/customers/c5").json()["belief"]
        second = api.post("/v1/labels", json=body).json()
        assert api.get("/v1/customers/c5").json()["belief"] == after
        older = api.post("/v1/labels", json={**body, "id": rows[0]["id"]}).json()
        assert api.get("/v1/customers/c5").json()["belief"] == after
        text = api.get("/metrics").text
    rates = made.regimes.mean_rates
    expected = [b * r for b, r in zip(before, rates, strict=True)]
    assert after == pytest.approx([one / sum(expected) for one in expected])
    assert (first["changed"], first["belief"]) == (True, "conditioned")
    assert (second["changed"], second["belief"]) == (False, "unchanged")
    assert (older["changed"], older["belief"]) == (True, "unchanged")
    assert [one["why_unchanged"] for one in (first, second, older)] == [
        None,
        "this label was reported before",
        "this is not the customer's latest transaction",
    ]
    assert 'turncoat_labels_total{label="1"} 2.0' in text


def test_a_fraud_is_reported_to_the_counterparty_once(model: Path) -> None:
    row = next(row for row in rows_of("shop") if row.get("shop"))
    body = {"id": row["id"], "customer": row["who"], "label": 1}
    with client(model, labels_update_belief=False) as api:
        api.post("/v1/score", json=row)
        first = api.post("/v1/labels", json=body).json()
        assert first["counterparties"] == {"shop": "fraud reported"}
        assert first["why_unchanged"] == "this service runs with --no-labels-update-belief"
        again = api.post("/v1/labels", json=body).json()
        assert again["counterparties"] == {"shop": "unchanged"}
        assert api.post("/v1/labels", json={**body, "label": 0}).json() == {
            "id": str(row["id"]),
            "customer": row["who"],
            "label": 0,
            "changed": True,
            "belief": "unchanged",
            "why_unchanged": "only a transaction's first label changes the belief",
            "counterparties": {"shop": "genuine reported"},
        }


def test_labels_of_unknown_transactions_and_bad_labels_are_refused(model: Path) -> None:
    with client(model) as api:
        api.post("/v1/score", json=rows_of("shop")[0])
        customer, id = rows_of("shop")[0]["who"], rows_of("shop")[0]["id"]
        assert error(api.post("/v1/labels", json={"id": "?", "customer": customer, "label": 1}))[
            :2
        ] == (404, "not_found")
        assert error(api.post("/v1/labels", json={"id": id, "customer": "?", "label": 1}))[:2] == (
            404,
            "not_found",
        )
        refused = api.post("/v1/labels", json={"id": id, "customer": customer, "label": 2})
        assert error(refused) == (422, "invalid", "label")
        assert "`label` must be 1 for fraud or 0 for genuine" in refused.json()["error"]["message"]
        refused = api.post("/v1/labels", json={"id": id, "customer": customer, "label": "maybe"})
        assert error(refused) == (422, "invalid", "label")
        said = api.post("/v1/labels", json={"id": id, "customer": customer, "label": "Yes"})
        assert said.json()["label"] == 1
        assert error(api.post("/v1/labels", json={"id": id, "customer": customer})) == (
            422,
            "invalid",
            "label",
        )


# ------------------------------------------------------------------------------- access


def test_keys_allow_their_scopes_only(model: Path, tmp_path: Path) -> None:
    secrets, lines = {}, []
    for name, scopes in (("gate", ["score"]), ("desk", ["read", "label"])):
        secrets[name], key = create_key(name, scopes)
        lines.append(str(key))
    (tmp_path / "keys").write_text("# comment\n" + "\n".join(lines) + "\n")
    row = rows_of("shop")[0]
    with client(model, keys_file=str(tmp_path / "keys")) as api:

        def status(path: str, secret: str | None, body: Any = None) -> int:
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            return (
                api.get(path, headers=headers)
                if body is None
                else api.post(path, json=body, headers=headers)
            ).status_code

        label = {"id": row["id"], "customer": row["who"], "label": 0}
        assert status("/v1/score", secrets["gate"], row) == 200
        assert status("/v1/score", secrets["desk"], row) == 403
        assert status("/v1/labels", secrets["gate"], label) == 403
        assert status("/v1/labels", secrets["desk"], label) == 200
        assert status(f"/v1/customers/{row['who']}", secrets["desk"]) == 200
        assert status("/metrics", secrets["gate"]) == 403
        assert status("/openapi.json", secrets["gate"]) == 200
        for wrong in (
            None,
            "",
            "tc_wrong",
            secrets["gate"] + "x",
            secrets["gate"][:-1],
            lines[0].split()[-1],
            "é",
        ):
            found = api.post("/v1/score", json=row, headers={"X-API-Key": (wrong or "").encode()})
            assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
        assert (
            api.post("/v1/score", json=row, headers={"X-API-Key": secrets["gate"]}).status_code
            == 200
        )
        assert status("/livez", None) == status("/readyz", None) == 200
    assert not any(secret in (tmp_path / "keys").read_text() for secret in secrets.values())


def test_keys_are_read_from_the_environment_and_invalid_ones_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret, key = create_key("gate", ["score"])
    monkeypatch.setenv("TURNCOAT_API_KEYS", f"{key}")
    assert ApiKeyAuthenticator(load_keys(None)).find_key(secret) == key
    assert ApiKeyAuthenticator(load_keys(None)).find_key("other") is None
    for bad in ("gate score", "gate score,drink " + "0" * 64, "gate score xyz", f"{key}\n{key}"):
        with pytest.raises(ConfigError, match="line"):
            parse_keys(bad, "keys")
    (tmp_path / "keys").write_text("")
    monkeypatch.delenv("TURNCOAT_API_KEYS")
    with pytest.raises(ConfigError, match="no keys"):
        load_keys(tmp_path / "keys")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(tmp_path / "absent")


def test_callers_are_rate_limited(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("turncoat.serving.auth.time.monotonic", lambda: now[0])
    limiter = RateLimiter(2.0)
    assert [limiter.acquire("a"), limiter.acquire("a"), limiter.acquire("b")] == [0.0, 0.0, 0.0]
    assert limiter.acquire("a") == pytest.approx(0.5)
    now[0] = 0.5
    assert limiter.acquire("a") == 0.0
    assert limiter.acquire("a") > 0
    monkeypatch.undo()
    with client(model, rate_limit_per_s=3.0) as api:
        found = [api.get("/v1/model") for _ in range(8)]
    assert [one.status_code for one in found[:3]] == [200, 200, 200]
    assert 429 in {one.status_code for one in found}
    assert int(next(one for one in found if one.status_code == 429).headers["retry-after"]) >= 1


def test_a_request_after_retry_after_is_accepted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("turncoat.serving.auth.time.monotonic", lambda: now[0])
    with client(model, rate_limit_per_s=0.4) as api:
        assert api.get("/v1/model").status_code == 200
        refused = api.get("/v1/model")
        assert refused.status_code == 429
        now[0] += int(refused.headers["retry-after"])
        assert api.get("/v1/model").status_code == 200


def test_a_trailing_slash_is_not_redirected(model: Path) -> None:
    with client(model) as api:
        for path in ("/v1/score/", "/livez/", "/docs//"):
            found = api.get(path, follow_redirects=False)
            assert (found.status_code, found.json()["error"]["kind"]) == (404, "not_found")


def test_customers_may_have_any_name(model: Path) -> None:
    with client(model) as api:
        for name in ("bob", "bob\n", "a\nb", "a/b", " ", "Zoë"):
            api.post("/v1/score", json={**rows_of("shop")[0], "who": name})
        for name in ("bob", "bob\n", "a\nb", "a/b", " ", "Zoë"):
            assert api.get(f"/v1/customers/{quote(name, safe='')}").json()["customer"] == name


def test_settings_without_a_finite_number_are_refused() -> None:
    for changed in ({"retention_days": inf}, {"rate_limit_per_s": nan}, {"client_timeout_s": inf}):
        with pytest.raises(ConfigError, match="must be a number"):
            ServiceSettings(model_path="m", store_url="memory://", **changed).check()


def test_batch_lines_are_rate_limited(model: Path) -> None:
    import time

    lines = b"\n".join(json.dumps({**rows_of("shop")[0], "id": i}).encode() for i in range(30))
    with client(model, rate_limit_per_s=20.0) as api:
        began = time.monotonic()
        assert len(api.post("/v1/score/batch", content=lines).text.splitlines()) == 30
        assert time.monotonic() - began > 0.4  # twenty at once, the others one by one


def test_without_keys_pages_of_other_sites_are_refused(model: Path) -> None:
    with client(model) as api:
        for origin, status in (
            ("http://[x", 403),
            ("https://elsewhere.example", 403),
            ("null", 403),
            ("http://localhost:8000", 200),
            ("http://127.0.0.1", 200),
        ):
            assert (
                api.post(
                    "/v1/score", json=rows_of("shop")[0], headers={"Origin": origin}
                ).status_code
                == status
            )


def test_without_keys_other_host_names_are_refused(model: Path) -> None:
    with client(model) as api:
        for name in (
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "[",
            "",
        ):
            assert error(api.get("/v1/model", headers={"Host": name}))[:2] == (403, "forbidden"), (
                name
            )
        for name in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:80"):
            assert api.get("/v1/model", headers={"Host": name}).status_code == 200, name


@pytest.mark.parametrize("among_others", [True, False])
def test_after_a_failed_write_later_lines_of_the_customer_fail_too(
    model: Path, caplog: pytest.LogCaptureFixture, among_others: bool
) -> None:
    """Otherwise the first line would be late when it is sent again. The error is logged."""
    own = [row for row in rows_of("shop") if row["who"] == "c1"][: 3 if among_others else 60]
    others = [row for row in rows_of("shop") if row["who"] != "c1"][:200] if among_others else []
    others += [{**row, "who": "fresh", "id": "fresh"} for row in others[-1:]]
    lines = b"\n".join(json.dumps(row).encode() for row in (own[0], *others, *own[1:]))
    with client(model) as api:
        store = api.app.state.service.store
        write, n_writes = store.write, 0

        async def fail_once(groups: Any) -> list[bool]:
            nonlocal n_writes
            n_writes += 1
            if n_writes == 1:
                raise StoreError("gone for a moment")
            return await write(groups)

        store.write = fail_once
        answers = [
            json.loads(line)
            for line in api.post("/v1/score/batch", content=lines).text.splitlines()
        ]
        assert all(answers[i]["error"]["kind"] in ("store", "overloaded") for i in (0, -2, -1))
        assert (
            any("probability" in answer for answer in answers) == among_others
        )  # whom nothing of it concerns is answered
        again = [
            json.loads(line)
            for line in api.post("/v1/score/batch", content=lines).text.splitlines()
        ]
        theirs = [answer for answer in again if answer["customer"] == "c1"]
        assert [(answer["late"], answer["n_seen"]) for answer in theirs] == [
            (False, i + 1) for i in range(len(own))
        ]
    assert "gone for a moment" in caplog.text


def test_a_damaged_record_is_a_503(model: Path) -> None:
    row = rows_of("shop")[0]
    with client(model) as api:
        api.post("/v1/score", json=row)
        db, key = api.app.state.service.store._db, customer_key(row["who"])
        (data,) = db.execute("SELECT data FROM records WHERE key = ?", (key,)).fetchone()
        damaged = pack_record(replace(unpack_record(key, data), state=b"nonsense"))
        db.execute("UPDATE records SET data = ? WHERE key = ?", (damaged, key))
        assert error(api.get(f"/v1/customers/{row['who']}"))[:2] == (503, "store")
        assert error(
            api.post("/v1/labels", json={"id": row["id"], "customer": row["who"], "label": 1})
        )[:2] == (503, "store")


def test_a_new_model_with_other_columns_decodes_waiting_rows_again(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.features.sample_data import SHOP, of_frame, shop_frame
    from tests.scoring.detectors import FEW, model_of, time_split
    from turncoat import Detector
    from turncoat.features import Features

    turned = of_frame(shop_frame(700, 3), replace(SHOP, continuous=("age", "paid"))).transactions
    other = Detector(Features(min_count=4, include=FEW), model_of("expected-log")).fit(
        turned, time_split(turned)
    )
    other.save(tmp_path / "other")
    model = bundle("shop", tmp_path)
    before, after = (
        Service(ServiceSettings(model_path=str(folder), store_url="memory://", create_store=True))
        for folder in (model, tmp_path / "other")
    )
    old = before.registry.current.decoder.decode(json.dumps(rows_of("shop")[0]).encode())
    now = after.registry.current.decoder.decode(json.dumps(rows_of("shop")[0]).encode())
    taken = _decode_again(old, after.registry.current)
    assert taken.schema is now.schema
    assert str(taken.row.numbers) == str(now.row.numbers) == str(old.row.numbers[::-1])


def test_customers_are_stored_under_pseudonyms(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "a key that nobody knows")
    row = {**rows_of("shop")[0], "who": "4111111111111111"}
    with client(model, f"sqlite:///{tmp_path}/beliefs.sqlite", pseudonymise=True) as api:
        answer = api.post("/v1/score", json=row).json()
        by_name = api.get("/v1/customers/4111111111111111").json()
        assert by_name == api.get(f"/v1/customers/{answer['customer']}").json()
        assert api.post(
            "/v1/labels", json={"id": row["id"], "customer": row["who"], "label": 0}
        ).json()["changed"]
    assert answer["customer"].startswith("~")
    assert "4111111111111111" not in json.dumps(answer)
    for file in tmp_path.glob("beliefs.sqlite*"):
        assert b"4111111111111111" not in file.read_bytes()
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "short")
    with pytest.raises(ConfigError, match="TURNCOAT_PSEUDONYM_KEY"):
        create_app(
            ServiceSettings(
                model_path=str(model), store_url="memory://", create_store=True, pseudonymise=True
            )
        )


# ------------------------------------------------------------------------------- models


def test_a_new_model_is_loaded_and_a_damaged_one_is_not(model: Path) -> None:
    import time

    other = detector("shop", "point")
    row = rows_of("shop")[0]

    def until(api: Any, version: str) -> None:
        deadline = time.monotonic() + 20
        while api.get("/v1/model").json()["model"] != version:
            assert time.monotonic() < deadline, "the new model was not taken up"
            time.sleep(0.02)

    with client(model) as api:
        assert api.post("/v1/score", json=row).json()["model"] == detector("shop").digest_
        other.save(model)
        until(api, other.digest_)
        again = api.post("/v1/score", json={**row, "id": "next"}).json()
        assert (again["belief_source"], again["n_seen"], again["model"]) == (
            "rebuilt",
            2,
            other.digest_,
        )
        (model / "manifest.json").write_text("{")
        deadline = time.monotonic() + 20
        while "turncoat_reload_errors_total 1.0" not in api.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert api.post("/v1/score", json={**row, "id": "last"}).json()["model"] == other.digest_
        assert api.get("/readyz").status_code == 200
    with pytest.raises(BundleError):
        create_app(ServiceSettings(model_path=str(model), store_url="memory://", create_store=True))


def test_a_partly_copied_model_is_loaded_when_complete(model: Path, tmp_path: Path) -> None:
    import shutil
    import time

    other = detector("shop", "point")
    other.save(tmp_path / "next")
    with client(model) as api:
        shutil.copy(tmp_path / "next" / "manifest.json", model / "manifest.json")
        deadline = time.monotonic() + 20
        while "turncoat_reload_errors_total 1.0" not in api.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for file in (tmp_path / "next").glob("params-*"):
            shutil.copy(file, model)
        while api.get("/v1/model").json()["model"] != other.digest_:
            assert time.monotonic() < deadline, "the new model was not taken up"
            time.sleep(0.02)


def test_metrics_count_requests(model: Path) -> None:
    rows = [row for row in rows_of("shop") if row["who"] == "c6"][:3]
    with client(model) as api:
        for row in (rows[0], rows[2], rows[1], rows[0], {**rows[0], "paid": "x"}):
            api.post("/v1/score", json=row)
        text = api.get("/metrics").text
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert counts["turncoat_scores_total"] == "3.0"
    assert counts["turncoat_duplicate_transactions_total"] == "1.0"
    assert counts["turncoat_late_transactions_total"] == "1.0"
    assert counts["turncoat_store_errors_total"] == "0.0"
    assert counts['turncoat_request_errors_total{kind="invalid"}'] == "1.0"
    assert counts["turncoat_score_duration_seconds_count"] == "4.0"
    assert counts["turncoat_score_probability_count"] == "3.0"
    assert counts["turncoat_belief_age_seconds_count"] == "1.0"
    assert "turncoat_score_drift_psi" in counts
    assert any(name.startswith("turncoat_regime_drift_shift{") for name in counts)


def test_drift_openapi_and_page(model: Path) -> None:
    with client(model) as api:
        api.post("/v1/score", json=rows_of("shop")[0])
        assert api.get("/v1/drift").json()["verdict"] == "too few"
        document = api.get("/openapi.json").json()
        assert document["openapi"].startswith("3.1")
        page = api.get("/")
        assert page.url.path == "/docs"
    assert page.headers["content-type"].startswith("text/html")
    for path in document["paths"]:
        assert path in page.text
    assert "<script" not in page.text
    assert "not a probability of fraud" in page.text
    example = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"][
        "example"
    ]
    assert example.keys() <= document["components"]["schemas"]["Transaction"]["properties"].keys()
