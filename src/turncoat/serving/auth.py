"""API keys with scopes, stored as hashes in a keys file, and rate limits for each caller."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from turncoat.errors import ConfigError

SCORE, READ, LABEL = "score", "read", "label"
SCOPES = (SCORE, READ, LABEL)
KEYS_VARIABLE = "TURNCOAT_API_KEYS"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64}) (?P<scopes>[a-z,]+) (?P<digest>[0-9a-f]{64})")
_HINT = "Make one with `turncoat new-key NAME --scopes score,read`"
_MAX_CALLERS = 100_000  # whose rate is tracked


@dataclass(frozen=True)
class ApiKey:
    """Name, scopes and SHA-256 digest of a key. The key itself is 256 random bits."""

    name: str
    scopes: frozenset[str]
    digest: str

    def __str__(self) -> str:
        """Return the key's line in a keys file."""
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        return f"{self.name} {scopes} {self.digest}"


def create_key(name: str, scopes: Iterable[str]) -> tuple[str, ApiKey]:
    """Return a new secret for its owner, and the key to store in a keys file."""
    secret = f"tc_{secrets.token_urlsafe(32)}"
    return secret, parse_keys(f"{name} {','.join(scopes)} {_digest(secret)}", "the new key")[0]


def parse_keys(text: str, source: str) -> list[ApiKey]:
    """Return the keys of a text, one per line: `NAME SCOPE,SCOPE SHA256`.

    Lines may also be separated by semicolons. Empty lines and lines that start with # are skipped.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        where = f"{source}, line {number}"
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigError(f"{where}: not `NAME SCOPES SHA256`. {_HINT}")
        scopes = frozenset(match["scopes"].split(","))
        if unknown := scopes - set(SCOPES):
            names = ", ".join(sorted(unknown))
            raise ConfigError(f"{where}: unknown scope {names}; use {', '.join(SCOPES)}")
        if match["name"] in {key.name for key in keys}:
            twice = f"the name {match['name']!r} is used twice"
            raise ConfigError(f"{where}: {twice}. Give each key its own name")
        keys.append(ApiKey(match["name"], scopes, match["digest"]))
    return keys


def load_keys(path: str | Path | None) -> list[ApiKey]:
    """Return the keys of the environment variable TURNCOAT_API_KEYS and of a file."""
    variable = os.environ.get(KEYS_VARIABLE, "")
    keys = parse_keys(variable, KEYS_VARIABLE)
    if variable and not keys:
        raise ConfigError(f"{KEYS_VARIABLE} is set but has no keys. Unset it, or add one. {_HINT}")
    if path is not None:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: the keys cannot be read: {error}") from error
        keys += parse_keys(text, str(path))
        if not keys:
            raise ConfigError(f"{path}: no keys. {_HINT}")
    return keys


class ApiKeyAuthenticator:
    """Finds the key that a request was sent with."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        """Without keys every caller may do everything; use that on loopback only."""
        self._keys = tuple(keys)
        self.needs_key = bool(self._keys)

    def find_key(self, secret: str) -> ApiKey | None:
        """Return the key of a secret, or None. Every wrong secret takes the same time."""
        digest = _digest(secret)
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        return found[-1] if found else None


@dataclass
class RateLimiter:
    """Token bucket of each caller in this process: bursts of one second. 0 is no limit."""

    per_second: float
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)  # tokens, as of when

    def acquire(self, caller: str) -> float:
        """Take a token. Returns 0, or the seconds to wait if there is none."""
        if self.per_second <= 0:
            return 0.0
        now, capacity = time.monotonic(), max(self.per_second, 1.0)
        if len(self._buckets) >= _MAX_CALLERS and caller not in self._buckets:
            self._buckets.clear()
        tokens, updated = self._buckets.get(caller, (capacity, now))
        tokens = min(tokens + (now - updated) * self.per_second, capacity)
        has_token = tokens >= 1.0
        self._buckets[caller] = (tokens - has_token, now)
        return 0.0 if has_token else (1.0 - tokens) / self.per_second


@lru_cache(256)
def is_loopback_url(url: bytes) -> bool:
    """Whether the host of a URL, or of `//HOST`, is this machine's loopback interface."""
    try:
        return is_loopback_host(urlsplit(url.decode("latin-1")).hostname or "")
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Whether a host is this machine's loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
