"""The interface as a page for people: one self-contained HTML document, made of the OpenAPI one."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2430 }
h1 { margin-bottom: 0 } h2 { margin-top: 2.2rem; border-bottom: 1px solid #d7dde5; padding-bottom: .3rem }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f3f5f8; border-radius: 4px } code { padding: .1em .3em }
pre { padding: .8rem; overflow: auto; max-height: 22rem }
.verb { color: #fff; background: #30507a; padding: .1em .5em; border-radius: 4px; font-size: 14px }
table { border-collapse: collapse; width: 100% }
td:nth-child(2) { width: 70% }
details td:nth-child(1) { width: 20% } details td:nth-child(2) { width: 32% }
td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top }
.muted { color: #5b6675 }
summary { cursor: pointer }
"""


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    operations = [
        _operation(path, verb, operation, document)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    schemas = [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(info['title'])}</title>"
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['summary'])} The same for machines: "
        "<a href='openapi.json'>openapi.json</a>. With keys set up, send one as <code>Authorization: Bearer KEY</code>.</p>"
        f"{''.join(operations)}<h2>Types</h2>{''.join(schemas)}</body></html>"
    )


def _operation(path: str, verb: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [
        f"<h2><span class='verb'>{verb.upper()}</span> <code>{escape(path)}</code></h2><p>{_text(operation['summary'])}. "
    ]
    parts.append(
        f"<span class='muted'>{_text(operation.get('description', 'Needs no key.'))}</span></p>"
    )
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        example = (
            body["example"]
            if isinstance(body["example"], str)
            else json.dumps(body["example"], indent=1)
        )
        parts.append(
            f"<details><summary>Example body ({escape(media)})</summary><pre>{escape(example)}</pre></details>"
        )
    rows = [
        f"<tr><td><code>{code}</code></td><td>{_text(response['description'])}</td><td class='muted'>{_types(response)}</td></tr>"
        for code, response in operation["responses"].items()
    ]
    return "".join([*parts, "<table>", *rows, "</table>"])


def _text(words: str) -> str:
    """Words, of which those between backticks are code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(words))


def _types(response: dict[str, Any]) -> str:
    return ", ".join(escape(_type(body["schema"])) for body in response["content"].values())


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(field)}</code></td><td>{escape(_type(kind))}</td>"
        f"<td class='muted'>{escape(kind.get('description', 'required' if field in required else ''))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    ]
    said = escape(schema.get("description", ""))
    return f"<details><summary><code>{escape(name)}</code> {said}</summary><table>{''.join(rows)}</table></details>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[several]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {_type(items)}"
    return str(schema.get("type", "anything"))
