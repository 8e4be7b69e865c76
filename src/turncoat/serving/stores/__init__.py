"""Where beliefs are kept: in memory, in a file, in Redis. One behaviour, `protocol`; one door, `open_store`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from turncoat.errors import ConfigError, StoreError
from turncoat.serving.stores.memory import MemoryStore
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

__all__ = [
    "LABEL",
    "SCORE",
    "LogEntry",
    "RecordWrite",
    "Store",
    "StoredRecord",
    "WriteGroup",
    "open_store",
]

_FORMS = (
    "memory://, sqlite:///relative/path.sqlite, sqlite:////absolute/path.sqlite (with ?synchronous=FULL, NORMAL or OFF), "
    "redis://host:port/db, rediss://host:port/db or unix:///path/redis.sock (with ?prefix=NAME; a socket also with db=NUMBER)"
)


def open_store(url: str, create: bool = False) -> Store:
    """The store at a URL. A ConfigError if it is no URL of a store; a StoreError if the file there is no store.

    A missing file, or a store in memory, is refused unless `create` is set.
    A password never stands in the URL: it is taken from the environment, TURNCOAT_REDIS_PASSWORD (and TURNCOAT_REDIS_USERNAME).
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("memory", "sqlite", "redis", "rediss", "unix"):
        raise _refused(f"begins with {scheme + mark!r}" if mark else "has no ://")
    if scheme in ("redis", "rediss", "unix"):
        return _redis(scheme, rest)
    place, _, query = rest.partition("?")
    if scheme == "sqlite":
        return _sqlite(place, _options(query, "synchronous"), create)
    if _options(query) or place:
        raise _refused("has something after memory://")
    if not create:
        raise ConfigError(
            "a store in memory is gone with its process, and this one would be empty. Name the one that the service uses"
        )
    return MemoryStore()


def _sqlite(place: str, options: dict[str, str], create: bool) -> Store:
    path = place[1:]
    if not place.startswith("/") or path in ("", "/", ":memory:"):
        raise _refused("names no file after sqlite:///")
    if not create and not Path(path).exists():
        raise StoreError(
            f"there is no store {Path(path).absolute()}. Name the one that the service uses"
        )
    return SQLiteStore(path, **options)


def _redis(scheme: str, rest: str) -> Store:
    if "@" in rest:  # before anything of it can be shown
        raise ConfigError(
            "a store's URL must not hold a user or a password, and this one has an @: "
            "set TURNCOAT_REDIS_PASSWORD (and TURNCOAT_REDIS_USERNAME) in the environment and leave them out"
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise _refused("has a host or port that cannot be read") from None
    try:
        from turncoat.serving.stores.redis import RedisStore
    except ImportError as problem:
        raise ConfigError(
            f"a store in Redis needs the extra: pip install turncoat[serve] ({problem})"
        ) from problem
    if scheme == "unix":
        options = _options(parts.query, "prefix", "db")
        if parts.netloc or len(parts.path) < 2:
            raise _refused("names no socket after unix://")
        return RedisStore(path=parts.path, db=_db(options.get("db", "")), prefix=_prefix(options))
    options = _options(parts.query, "prefix")
    return RedisStore(
        host, port, _db(parts.path[1:]), tls=scheme == "rediss", prefix=_prefix(options)
    )


def _db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise _refused("has a database that is no number")
    return int(text or 0)


def _prefix(options: dict[str, str]) -> str:
    prefix = options.get("prefix", "turncoat")
    if not prefix:
        raise _refused("has an empty prefix")
    return prefix


def _options(query: str, *allowed: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _refused("has options that are not name=value") from None
    options = dict(pairs)
    unknown = [name for name in options if name not in allowed]
    if unknown or len(options) < len(pairs):
        raise _refused(f"has the option {unknown[0]!r}" if unknown else "has an option twice")
    return options


def _refused(what: str) -> ConfigError:
    return ConfigError(f"the store's URL {what}. It must be one of: {_FORMS}")
