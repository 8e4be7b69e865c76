"""Who is let in: by key, scope and pace; without keys, only this machine's own programs and pages."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import Scope

from turncoat.serving.bodies import Head
from turncoat.serving.refusals import RequestError
from turncoat.serving.service import Service


def admitted(scope: Scope, wanted: str | None, paced: bool = True) -> tuple[Service, Head, str]:
    """The service, if the caller may use it for this; the head of the request; and who calls."""
    service: Service = scope["app"].state.service
    limiter = scope["app"].state.rate_limiter
    head: Head = dict(scope["headers"])
    caller = scope["client"][0] if scope.get("client") else "local"
    if scope["app"].state.authenticator.is_open:
        if b"origin" in head and not _is_here(
            head[b"origin"]
        ):  # a page of somebody else's in a browser here
            raise RequestError(
                403,
                "forbidden",
                f"pages of {_host(head[b'origin'])} may not use a service without keys",
            )
        if not _is_here(
            b"//" + head.get(b"host", b"localhost")
        ):  # or one that had this machine's address given to its own name
            raise RequestError(
                403,
                "forbidden",
                "without keys only requests to localhost are answered. Use --keys, or send `Host: localhost`",
            )
    else:
        given = head.get(b"authorization", b"")
        secret = given[7:] if given[:7].lower() == b"bearer " else head.get(b"x-api-key", b"")
        key = scope["app"].state.authenticator.caller(secret.decode("latin-1"))
        if key is None:
            raise RequestError(
                401,
                "unauthorized",
                "no valid API key. Send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
            )
        if wanted is not None and wanted not in key.scopes:
            raise RequestError(
                403,
                "forbidden",
                f"this key may not {wanted}; it may {', '.join(sorted(key.scopes))}",
            )
        caller = key.name
    if paced and (wait := limiter.wait(caller)):
        raise RequestError(
            429,
            "too_many",
            f"more than {scope['app'].state.rate_limiter.per_second:g} requests a second",
            retry_after=wait,
        )
    return service, head, caller


@lru_cache(256)
def _is_here(origin: bytes) -> bool:
    """Whether an address is this machine's."""
    name = _host(origin)
    try:
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


def _host(origin: bytes) -> str | None:
    """The name of the machine in an address; None if it has none."""
    try:
        return urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None
