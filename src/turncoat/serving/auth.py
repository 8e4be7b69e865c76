"""Who may do what: API keys with scopes, known only by their hashes, and how many requests each may make."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from turncoat.errors import ConfigError

SCORE, READ, LABEL = "score", "read", "label"
SCOPES = (SCORE, READ, LABEL)
KEYS_VARIABLE = "TURNCOAT_API_KEYS"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64}) (?P<scopes>[a-z,]+) (?P<digest>[0-9a-f]{64})")
_MOST_CALLERS = 100_000  # whose pace is remembered


@dataclass(frozen=True)
class ApiKey:
    """An API key: whose it is, what it may do, and the SHA-256 of it. The key itself is 256 random bits, which no dictionary has."""

    name: str
    scopes: frozenset[str]
    digest: str

    def __str__(self) -> str:
        """As a line of a keys file."""
        return f"{self.name} {','.join(scope for scope in SCOPES if scope in self.scopes)} {self.digest}"


def new_key(name: str, scopes: Iterable[str]) -> tuple[str, ApiKey]:
    """A fresh key, to be given to its owner and forgotten, and what is kept of it."""
    secret = f"tc_{secrets.token_urlsafe(32)}"
    return secret, parse_keys(f"{name} {','.join(scopes)} {_digest(secret)}", "the new key")[0]


def parse_keys(text: str, source: str) -> list[ApiKey]:
    """Keys, one a line: `NAME SCOPE,SCOPE SHA256`. Empty lines and those that begin with # are left out."""
    keys: list[ApiKey] = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ConfigError(
                f"{source}, line {number}: not `NAME SCOPES SHA256`. Make one with `turncoat new-key NAME --scopes score,read`"
            )
        scopes = frozenset(found["scopes"].split(","))
        if unknown := scopes - set(SCOPES):
            raise ConfigError(
                f"{source}, line {number}: {', '.join(sorted(unknown))} is no scope; there are {', '.join(SCOPES)}"
            )
        if found["name"] in {key.name for key in keys}:
            raise ConfigError(
                f"{source}, line {number}: there is a key {found['name']!r} already. Give each a name of its own"
            )
        keys.append(ApiKey(found["name"], scopes, found["digest"]))
    return keys


def load_keys(path: Path | None) -> list[ApiKey]:
    """The keys of a file, and those in the environment variable TURNCOAT_API_KEYS (lines, or apart by semicolons)."""
    given = os.environ.get(KEYS_VARIABLE, "")
    keys = parse_keys(given, KEYS_VARIABLE)
    if given and not keys:
        raise ConfigError(
            f"{KEYS_VARIABLE} is set and has no keys. Unset it, or make one with `turncoat new-key NAME --scopes score,read`"
        )
    if path is not None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{path}: the keys cannot be read: {problem}") from problem
        keys += parse_keys(text, str(path))
        if not keys:
            raise ConfigError(
                f"{path}: no keys. Make one with `turncoat new-key NAME --scopes score,read`"
            )
    return keys


class ApiKeyAuthenticator:
    """Lets callers in by their key."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        """Without keys everyone may do everything: for loopback only."""
        self._keys = tuple(keys)

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    def caller(self, secret: str | None) -> ApiKey | None:
        """Whose key it is; None if nobody's. Takes as long for any wrong one."""
        digest, found = _digest(secret or ""), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


@dataclass
class RateLimiter:
    """At most `per_second` requests a second for each caller, with bursts of a second's worth; 0 is no limit. Of one process."""

    per_second: float
    _left: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # caller: (requests left, as of when)

    def wait(self, caller: str) -> float:
        """Count a request; 0 if it may go ahead, else the seconds until it may."""
        if self.per_second <= 0:
            return 0.0
        now = time.monotonic()
        if len(self._left) >= _MOST_CALLERS and caller not in self._left:
            self._left.clear()
        most = max(self.per_second, 1.0)
        left, then = self._left.get(caller, (most, now))
        left = min(left + (now - then) * self.per_second, most)
        if left < 1.0:
            self._left[caller] = (left, now)
            return (1.0 - left) / self.per_second
        self._left[caller] = (left - 1.0, now)
        return 0.0


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
