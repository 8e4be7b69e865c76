"""Stores of beliefs: in memory, in a SQLite file, in Redis. `open_store` opens one by its URL."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from turncoat.errors import ConfigError
from turncoat.serving.stores.protocol import Store
from turncoat.serving.stores.sqlite import SQLiteStore

_OPTIONS: dict[str, tuple[str, ...]] = {"memory": (), "sqlite": ("synchronous",)}
_OPTIONS |= {"redis": ("prefix",), "rediss": ("prefix",), "unix": ("prefix", "db")}
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
    if scheme not in _OPTIONS or not separator:
        raise _invalid_url(f"starts with {scheme}://" if separator else "has no ://")
    if "@" in rest and scheme not in ("memory", "sqlite"):  # before any part can be shown
        raise ConfigError(
            "a store's URL must not contain a user or a password, and this one has an @: set "
            "TURNCOAT_REDIS_PASSWORD (and TURNCOAT_REDIS_USERNAME) in the environment instead"
        )
    path, _, query = rest.partition("?")
    options = _parse_options(query, _OPTIONS[scheme])
    if scheme == "memory":
        if path:
            raise _invalid_url("has something after memory://")
        if not create:
            raise ConfigError("a memory store always starts empty. Use the store of the service")
        return SQLiteStore(None, create=True)
    if scheme == "sqlite":
        if not path.startswith("/") or path in ("/", "//", "/:memory:"):
            raise _invalid_url("names no file after sqlite:///")
        return SQLiteStore(path[1:], **options, create=create)
    return _open_redis(scheme, path, options)


def _open_redis(scheme: str, path: str, options: dict[str, str]) -> Store:
    try:
        from turncoat.serving.stores.redis import RedisStore
    except ImportError as problem:
        remedy = "pip install turncoat[serve]"
        raise ConfigError(f"a Redis store needs the extra: {remedy} ({problem})") from problem
    host, _, rest = path.partition("/")
    is_socket = scheme == "unix"
    if is_socket and (host or not rest):
        raise _invalid_url("names no socket after unix://")
    db = (options.get("db") if is_socket else rest) or "0"
    if not (db.isascii() and db.isdigit()):
        raise _invalid_url("has a database that is not a number")
    if not (prefix := options.get("prefix", "turncoat")):
        raise _invalid_url("has an empty prefix")
    try:
        address = f"unix://{path}?db={db}" if is_socket else f"{scheme}://{host}/{db}"
        return RedisStore(address, prefix)
    except ValueError:
        raise _invalid_url("has an invalid host or port") from None


def _parse_options(query: str, allowed: Collection[str]) -> dict[str, str]:
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
