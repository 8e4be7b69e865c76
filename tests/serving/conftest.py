from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.redis_server import RedisServer, running_redis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests; give every test a prefix of its own."""
    with running_redis() as server:
        yield server
