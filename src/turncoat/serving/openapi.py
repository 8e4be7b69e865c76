"""The OpenAPI 3.1 document of the routes, and the same as an HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

import msgspec

from turncoat import __version__
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.responses import ErrorResponse

# Contents that are not a type: a transaction of the model in service, NDJSON lines, plain text.
TRANSACTION, LINES, TEXT = "transaction", "lines", "text"
_MEDIA_TYPES = {LINES: "application/x-ndjson", TEXT: "text/plain"}
_ERRORS = {
    400: "The body is not JSON.",
    401: "No valid API key.",
    403: "The key lacks the scope; or, without keys, the request comes from another site's page.",
    404: "Not found.",
    408: "The body came too slowly.",
    409: "The transaction is late and the service refuses late transactions.",
    413: "The body is too long.",
    422: "A field is unknown, missing or of the wrong type; `field` names it.",
    429: "Too many requests; `Retry-After` says when to try again.",
    503: "The store does not respond, or the service is overloaded; `Retry-After` says when to "
    "try again.",
}
_EXAMPLE_LABEL = {"id": "example-1", "customer": "example", "label": 1}


class Operation(NamedTuple):
    """Description of a route."""

    summary: str
    response: Any  # a type, several of them, LINES or TEXT
    body: Any = None  # a type, TRANSACTION or LINES
    errors: tuple[int, ...] = ()  # besides those of authentication and of reading the body


def describe(
    endpoints: Iterable[tuple[str, str, str | None, Operation]],
    decoder: TransactionDecoder,
    needs_key: bool,
) -> dict[str, Any]:
    """Return the OpenAPI document of endpoints: (method, path, scope, operation) of each."""
    endpoints = list(endpoints)
    types: list[Any] = [decoder.type, ErrorResponse]
    for *_, operation in endpoints:
        for content in (operation.response, operation.body):
            types += content if isinstance(content, tuple) else [content]
    types = [one for one in dict.fromkeys(types) if isinstance(one, type)]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))
    by_type |= {TRANSACTION: by_type[decoder.type], LINES: {"type": "string"}}
    by_type |= {TEXT: {"type": "string"}, dict: {"type": "object"}}

    def describe_content(content: Any) -> dict[str, Any]:
        if isinstance(content, tuple):
            schema: dict[str, Any] = {"anyOf": [by_type[one] for one in content]}
        else:
            schema = by_type[content]
        media_type = _MEDIA_TYPES.get(content, "application/json")
        return {media_type: {"schema": schema}}

    def describe_operation(path: str, scope: str | None, operation: Operation) -> dict[str, Any]:
        errors = set(operation.errors)
        if scope is not None:
            errors |= {401, 403, 429} if needs_key else {403, 429}
        if operation.body is not None:
            errors |= {400, 408, 413}
        responses = {
            "200": {"description": "Success.", "content": describe_content(operation.response)}
        }
        for status in sorted(errors):
            content = describe_content(ErrorResponse)
            responses[str(status)] = {"description": _ERRORS[status], "content": content}
        described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
        if scope is not None and needs_key:
            described |= {"description": f"Needs the scope `{scope}`.", "security": [{"key": []}]}
        if operation.body is not None:
            content = describe_content(operation.body)
            next(iter(content.values()))["example"] = _example(operation.body, decoder)
            described["requestBody"] = {"required": True, "content": content}
        if names := re.findall(r"{(\w+)}", path):
            text = {"type": "string", "minLength": 1}
            described["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": text} for name in names
            ]
        return described

    paths: dict[str, Any] = {}
    for method, path, scope, operation in endpoints:
        paths.setdefault(path, {})[method] = describe_operation(path, scope, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turncoat",
            "version": __version__,
            "summary": "Live fraud scores from stored beliefs.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _example(body: Any, decoder: TransactionDecoder) -> Any:
    if body == LINES:
        return msgspec.json.encode(decoder.example).decode()
    return decoder.example if body == TRANSACTION else _EXAMPLE_LABEL


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem; color: #1c2430 }
h1 { margin-bottom: 0 }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #d7dde5; padding-bottom: .3rem }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f3f5f8; border-radius: 4px }
code { padding: .1em .3em }
pre { padding: .8rem; overflow: auto; max-height: 22rem }
.method { color: #fff; background: #30507a; padding: .1em .5em; border-radius: 4px;
  font-size: 14px }
table { border-collapse: collapse; width: 100% }
td:nth-child(2) { width: 70% }
details td:nth-child(1) { width: 20% } details td:nth-child(2) { width: 32% }
td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top }
.muted { color: #5b6675 }
summary { cursor: pointer }
"""


def render_page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as one self-contained HTML page."""
    info = document["info"]
    title = escape(info["title"])
    operations = [
        _render_operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        _render_schema(name, schema) for name, schema in document["components"]["schemas"].items()
    ]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{title} {escape(info['version'])}</h1>"
        f"<p>{escape(info['summary'])} For programs: <a href='openapi.json'>openapi.json</a>. "
        "If the service has API keys, send one as <code>Authorization: Bearer KEY</code>.</p>"
        f"{''.join(operations)}<h2>Types</h2>{''.join(schemas)}</body></html>"
    )


def _render_operation(path: str, method: str, operation: dict[str, Any]) -> str:
    access = _render_text(operation.get("description", "Needs no key."))
    parts = [
        f"<h2><span class='method'>{method.upper()}</span> <code>{escape(path)}</code></h2>",
        f"<p>{_render_text(operation['summary'])}. <span class='muted'>{access}</span></p>",
    ]
    for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
        example = body["example"]
        text = example if isinstance(example, str) else json.dumps(example, indent=1)
        parts.append(
            f"<details><summary>Example body ({escape(media_type)})</summary>"
            f"<pre>{escape(text)}</pre></details>"
        )
    for code, response in operation["responses"].items():
        types = ", ".join(escape(_name_type(one["schema"])) for one in response["content"].values())
        cells = [f"<code>{code}</code>", _render_text(response["description"]), types]
        parts.append(_render_row("<table>" if code == "200" else "", cells))
    return "".join([*parts, "</table>"])


def _render_row(before: str, cells: list[str]) -> str:
    first, second, third = cells
    return f"{before}<tr><td>{first}</td><td>{second}</td><td class='muted'>{third}</td></tr>"


def _render_text(text: str) -> str:
    """Escape a text; words between backticks become code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _render_schema(name: str, schema: dict[str, Any]) -> str:
    rows = []
    for field, kind in schema.get("properties", {}).items():
        default = "required" if field in schema.get("required", []) else ""
        notes = escape(kind.get("description", default))
        rows.append(
            _render_row("", [f"<code>{escape(field)}</code>", escape(_name_type(kind)), notes])
        )
    description = escape(schema.get("description", ""))
    return (
        f"<details><summary><code>{escape(name)}</code> {description}</summary>"
        f"<table>{''.join(rows)}</table></details>"
    )


def _name_type(schema: dict[str, Any]) -> str:
    """Return a schema's type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_name_type(one) for one in schema[key]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {_name_type(items)}"
    return str(schema.get("type", "anything"))
