"""The table of endpoints as an OpenAPI 3.1 document, and the same as an HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NewType, get_args

import msgspec
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from turncoat import __version__
from turncoat.serving.decoding import LabelRequest, TransactionDecoder
from turncoat.serving.responses import ErrorResponse

Json = dict[str, Any]
ServedTransaction = NewType("ServedTransaction", Json)  # of the model in service
Lines = NewType("Lines", str)  # NDJSON
LabelLines = NewType("LabelLines", str)  # NDJSON
Text = NewType("Text", str)
_NDJSON = "application/x-ndjson"
_MEDIA_TYPES = {Lines: _NDJSON, LabelLines: _NDJSON, Text: "text/plain"}
_RETRY = "`Retry-After` says when to try again."
_ERRORS = {
    400: "The body is not JSON.",
    401: "No valid API key.",
    403: "The key lacks the scope; or, without keys, the request comes from another site's page.",
    404: "Not found.",
    408: "The body came too slowly.",
    409: "The transaction is late and the service refuses late transactions.",
    413: "The body is too long.",
    422: "A field is unknown, missing or of the wrong type; `field` names it.",
    429: f"Too many requests; {_RETRY}",
    503: f"The store does not respond, or the service is overloaded; {_RETRY}",
}
_EXAMPLE_LABEL = {"id": "example-1", "customer": "example", "label": 1}


class Endpoint(NamedTuple):
    """A route: its handler (whose docstring is the summary), who may use it, and its types."""

    method: str
    path: str
    handler: Callable[..., Any]
    key_scope: str | None = None  # that an API key needs; None lets everyone in
    response: Any = None  # a type or a union of types; None leaves the route out of OpenAPI
    body: Any = None
    errors: tuple[int, ...] = ()  # besides those of authentication and of reading the body
    is_rate_limited: bool = True


def describe(endpoints: Iterable[Endpoint], decoder: TransactionDecoder, needs_key: bool) -> Json:
    """Return the OpenAPI document."""
    endpoints = [endpoint for endpoint in endpoints if endpoint.response is not None]
    types = {decoder.type: None, ErrorResponse: None}  # in order, each once
    for endpoint in endpoints:
        types |= dict.fromkeys((*_split_union(endpoint.response), *_split_union(endpoint.body)))
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types, ref_template=template)
    schema_of = dict(zip(types, schemas, strict=True))
    schema_of[ServedTransaction] = schema_of[decoder.type]

    def describe_content(content: Any, **example: Any) -> Json:
        found = [schema_of[one] for one in _split_union(content)]
        schema = found[0] if len(found) == 1 else {"anyOf": found}
        return {_MEDIA_TYPES.get(content, "application/json"): {"schema": schema, **example}}

    line = msgspec.json.encode(decoder.example).decode()
    label = msgspec.json.encode(_EXAMPLE_LABEL).decode()
    examples = {ServedTransaction: decoder.example, Lines: line}
    examples |= {LabelRequest: _EXAMPLE_LABEL, LabelLines: label}
    paths: Json = {}
    for endpoint in endpoints:
        statuses = set(endpoint.errors)
        described: Json = {"summary": " ".join(str(endpoint.handler.__doc__).split()).rstrip(".")}
        if endpoint.key_scope is not None:
            statuses |= {403, 429}
        if endpoint.key_scope is not None and needs_key:
            statuses.add(401)
            described["description"] = f"Needs the scope `{endpoint.key_scope}`."
            described["security"] = [{"key": []}]
        if endpoint.body is not None:
            statuses |= {400, 408, 413}
            content = describe_content(endpoint.body, example=examples[endpoint.body])
            described["requestBody"] = {"required": True, "content": content}
        responses = {"200": ("Success.", endpoint.response)}
        responses |= {str(code): (_ERRORS[code], ErrorResponse) for code in sorted(statuses)}
        described["responses"] = {
            status: {"description": meaning, "content": describe_content(content)}
            for status, (meaning, content) in responses.items()
        }
        path = endpoint.path.replace(":any", "")
        if names := re.findall(r"{(\w+)}", path):
            text = {"type": "string", "minLength": 1}
            parameter = {"in": "path", "required": True, "schema": text}
            described["parameters"] = [{"name": name, **parameter} for name in names]
        paths.setdefault(path, {})[endpoint.method.lower()] = described
    summary = "Live fraud scores from stored beliefs."
    keys = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turncoat", "version": __version__, "summary": summary},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": keys},
    }


def _split_union(content: Any) -> tuple[Any, ...]:
    return get_args(content) or (content,)


def render_page(document: Json) -> str:
    """Return an OpenAPI document as one self-contained HTML page."""
    pages = Environment(loader=PackageLoader("turncoat.serving", "."), autoescape=True)
    pages.trim_blocks = pages.lstrip_blocks = True
    pages.filters |= {"mark_code": _mark_code, "type_name": _type_name, "example": _show_example}
    return pages.get_template("openapi.html.jinja").render(document)


def _mark_code(text: str) -> Markup:
    """Escape a text; words between backticks become code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _show_example(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example, indent=1)


def _type_name(schema: Json) -> str:
    """Return a schema's type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type_name, choices)))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {_type_name(items)}"
    return str(schema.get("type", "anything"))
