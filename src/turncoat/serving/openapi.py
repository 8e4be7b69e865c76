"""The interface described by OpenAPI 3.1, made of the types that decode and encode it."""

from __future__ import annotations

from typing import Any

import msgspec

from turncoat import __version__
from turncoat.serving import auth
from turncoat.serving.decoding import LabelRequest, TransactionDecoder
from turncoat.serving.drift import DriftReport
from turncoat.serving.responses import (
    CustomerResponse,
    DuplicateResponse,
    ErrorResponse,
    LabelResponse,
    ScoredTransaction,
)

_JSON, _LINES, _TEXT = "application/json", "application/x-ndjson", "text/plain"
_REFUSALS = {
    400: "The body is not JSON.",
    401: "No valid API key.",
    403: "The key lacks the scope; or, without keys, the request is for a page of another site.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "The transaction is late, and the service refuses such.",
    413: "The body is too long.",
    422: "A field is unknown, missing or of the wrong type; `field` names it.",
    429: "Too many requests; `Retry-After` says when to come back.",
    503: "The store cannot be reached, or too much is waiting; `Retry-After` says when to come back.",
}


def describe(form: TransactionDecoder, needs_key: bool) -> dict[str, Any]:
    """The whole document, of a service that asks for keys or one that does not."""
    named = [
        form.type,
        ScoredTransaction,
        DuplicateResponse,
        LabelResponse,
        CustomerResponse,
        ErrorResponse,
        DriftReport,
        LabelRequest,
    ]
    schemas, components = msgspec.json.schema_components(
        named, ref_template="#/components/schemas/{name}"
    )
    transaction, answer, remembered, outcome, customer, refusal, drift, label = schemas
    answers = {"anyOf": [answer, remembered]}
    example_label = {"id": "example-1", "customer": "example", "label": 1}

    def operation(
        summary: str,
        scope: str | None,
        answered: tuple[str, Any],
        *,
        body: tuple[str, Any, Any] | None = None,
        also: tuple[int, ...] = (),
        parameters: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        keyed = (401, 403) if needs_key else (403,)  # without keys, pages of others are refused
        refusals = (
            *((*keyed, 429) if scope is not None else ()),
            *((400, 408, 413) if body is not None else ()),
            *also,
        )
        told: dict[str, Any] = {
            "summary": summary,
            "responses": {
                "200": {
                    "description": "The answer.",
                    "content": {answered[0]: {"schema": answered[1]}},
                }
            }
            | {
                str(code): {"description": _REFUSALS[code], "content": {_JSON: {"schema": refusal}}}
                for code in sorted(refusals)
            },
        }
        if scope is not None and needs_key:
            told |= {"description": f"Needs the scope `{scope}`.", "security": [{"key": []}]}
        if body is not None:
            told["requestBody"] = {
                "required": True,
                "content": {body[0]: {"schema": body[1], "example": body[2]}},
            }
        if parameters:
            told["parameters"] = parameters
        return told

    read, one = auth.READ, {"type": "object"}
    where = {
        "name": "customer",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    score = operation(
        "Score one transaction",
        auth.SCORE,
        (_JSON, answers),
        body=(_JSON, transaction, form.example),
        also=(409, 422, 503),
    )
    batch = operation(
        "Score many: one JSON object a line, answered a line each, in order; a refused line is answered with its error",
        auth.SCORE,
        (_LINES, {"type": "string"}),
        body=(_LINES, {"type": "string"}, msgspec.json.encode(form.example).decode()),
    )
    labels = operation(
        "Report the outcome of a transaction",
        auth.LABEL,
        (_JSON, outcome),
        body=(_JSON, label, example_label),
        also=(404, 422, 503),
    )
    known = operation(
        "What is remembered of a customer",
        read,
        (_JSON, customer),
        also=(404, 503),
        parameters=[where],
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turncoat",
            "version": __version__,
            "summary": "Live fraud scores from stored beliefs.",
        },
        "paths": {
            "/v1/score": {"post": score},
            "/v1/score/batch": {"post": batch},
            "/v1/labels": {"post": labels},
            "/v1/customers/{customer}": {"get": known},
            "/v1/model": {
                "get": operation(
                    "The model, its regimes, an example transaction", read, (_JSON, one)
                )
            },
            "/v1/drift": {
                "get": operation(
                    "How far scores and features are from those of calibration",
                    read,
                    (_JSON, drift),
                )
            },
            "/livez": {"get": operation("That the process runs", None, (_JSON, one))},
            "/readyz": {
                "get": operation(
                    "Whether the store can be read now", None, (_JSON, one), also=(503,)
                )
            },
            "/metrics": {
                "get": operation(
                    "What was counted, for Prometheus", read, (_TEXT, {"type": "string"})
                )
            },
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
