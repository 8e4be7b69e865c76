"""Customers' names replaced at the edge by a keyed hash, which only those with the key can make again."""

from __future__ import annotations

import hashlib
import hmac
import os
import re

from turncoat.errors import ConfigError

KEY_VARIABLE = "TURNCOAT_PSEUDONYM_KEY"
_LEAST_KEY = 16  # characters
_PSEUDONYM = re.compile(r"~[0-9a-f]{32}")


class Pseudonymiser:
    """Makes pseudonyms: `~` and 32 hexadecimal digits."""

    def __init__(self, key: str) -> None:
        """With a secret key of at least 16 characters."""
        if len(key) < _LEAST_KEY:
            raise ConfigError(
                f"the key for pseudonyms has {len(key)} characters; set {KEY_VARIABLE} to at least {_LEAST_KEY} random ones"
            )
        self._key = key.encode()

    @classmethod
    def from_environment(cls) -> Pseudonymiser:
        """With the key in TURNCOAT_PSEUDONYM_KEY."""
        return cls(os.environ.get(KEY_VARIABLE, ""))

    def of(self, customer: str) -> str:
        """The pseudonym of a customer; a pseudonym stays itself."""
        if _PSEUDONYM.fullmatch(customer):
            return customer
        return "~" + hmac.new(self._key, customer.encode(), hashlib.sha256).hexdigest()[:32]
