"""Stores of beliefs: in memory, in a SQLite file, in Redis. `open_store` opens one by its URL."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from turncoat.errors import ConfigError
from turncoat.serving.stores.protocol import (
    LABEL,
    SCORE,
    LogEntry,
    RecordWrite,
    Store,
    StoredRecord,
    WriteGroup,
)
from turncoat.serving.stores.sqlite import SQLiteStore

__all__ = ["LABEL", "SCORE", "LogEntry", "RecordWrite", "Store", "StoredRecord", "WriteGroup"]
__all__ += ["open_store"]

_URL_FORMS = (
    "memory://, sqlite:///relative/path.sqlite, sqlite:////absolute/path.sqlite (with "
    "?synchronous=FULL, NORMAL or OFF), redis://host:port/db, rediss://host:port/db or "
    "unix:///path/redis.sock (with ?prefix=NAME; a socket also with db=NUMBER)"
)


def open_store(url: str, create: bool = False) -> Store:
    """Open the store at a URL.

    Without `create`, a missing SQLite file is a StoreError and a memory store, which always starts
    empty, is a ConfigError. A Redis password comes from the environment variable
    TURNCOAT_REDIS_PASSWORD (and TURNCOAT_REDIS_USERNAME), never from the URL.
    """
    scheme, separator, rest = url.partition("://")
    if scheme in ("redis", "rediss", "unix") and separator:
        return _open_redis(scheme, rest)
    path, _, query = rest.partition("?")
    if scheme == "sqlite" and separator:
        options = _parse_options(query, "synchronous")
        if not path.startswith("/") or path in ("/", "//", "/:memory:"):
            raise _invalid_url("names no file after sqlite:///")
        return SQLiteStore(path[1:], **options, create=create)
    if scheme != "memory" or not separator:
        raise _invalid_url(f"starts with {scheme}://" if separator else "has no ://")
    if rest:
        raise _invalid_url("has something after memory://")
    if not create:
        raise ConfigError("a memory store always starts empty. Use the store of the service")
    return SQLiteStore(None, create=True)


def _open_redis(scheme: str, rest: str) -> Store:
    if "@" in rest:  # checked before any part of the URL can be shown
        raise ConfigError(
            "a store's URL must not contain a user or a password, and this one has an @: set "
            "TURNCOAT_REDIS_PASSWORD (and TURNCOAT_REDIS_USERNAME) in the environment instead"
        )
    try:
        from turncoat.serving.stores.redis import RedisStore
    except ImportError as problem:
        remedy = "pip install turncoat[serve]"
        raise ConfigError(f"a Redis store needs the extra: {remedy} ({problem})") from problem
    try:
        parts = urlsplit(f"//{rest}")
        host = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        raise _invalid_url("has an invalid host or port") from None
    if scheme == "unix":
        options = _parse_options(parts.query, "prefix", "db")
        if parts.netloc or len(parts.path) < 2:
            raise _invalid_url("names no socket after unix://")
        db = options.get("db") or "0"
        address = f"unix://{parts.path}?db={db}"
    else:
        options, db = _parse_options(parts.query, "prefix"), parts.path[1:] or "0"
        address = f"{scheme}://{host}/{db}"
    if not (db.isascii() and db.isdigit()):
        raise _invalid_url("has a database that is not a number")
    if not (prefix := options.get("prefix", "turncoat")):
        raise _invalid_url("has an empty prefix")
    return RedisStore(address, prefix)


def _parse_options(query: str, *allowed: str) -> dict[str, str]:
    """Return the options of a URL; each may occur once."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _invalid_url("has options that are not name=value") from None
    options = dict(pairs)
    unknown = [name for name in options if name not in allowed]
    if unknown or len(options) < len(pairs):
        raise _invalid_url(f"has the option {unknown[0]!r}" if unknown else "has an option twice")
    return options


def _invalid_url(reason: str) -> ConfigError:
    return ConfigError(f"the store's URL {reason}. It must be one of: {_URL_FORMS}")
