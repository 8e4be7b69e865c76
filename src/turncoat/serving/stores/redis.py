"""A store in a Redis server, which many machines may share.

Keys, after the prefix (`turncoat:` by default):

    record:KEY    string: the record's counter as text, a colon, its data
    log           stream: one entry per scored transaction or label
    log-by-time   sorted set: ids of the log's entries, by the time they were written
    log-by-id     sorted set: ids of the log's scores, by a hash of the transaction's id
    history:KEY   sorted set: ids of a party's log entries, by the counter of its record
    write-check   string: written by the readiness check

How long a write lasts is the server's setting (`appendonly`, `appendfsync`). One script writes all
keys of a batch, so they must be on one server: Redis Cluster cannot be used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from importlib.resources import files
from itertools import starmap
from typing import Any, Unpack

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    MasterDownError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from turncoat.errors import CorruptRecordError, StoreError, StoreUnavailableError
from turncoat.serving.stores import protocol
from turncoat.serving.stores.protocol import SCORE, EntryFilters, LogEntry, StoredRecord, WriteGroup

_logger = logging.getLogger("turncoat")

PASSWORD, USERNAME = "TURNCOAT_REDIS_PASSWORD", "TURNCOAT_REDIS_USERNAME"

_TIMEOUT_S = 2.0  # for a reply
_N_CONNECTIONS = 16
_HISTORY_PAGE = 100  # entries
_DELETE_BATCH = 100  # entries per script, so that others do not wait long

_WRITE = (files(__package__) / "redis_write.lua").read_text("utf-8")
_DELETE = (files(__package__) / "redis_delete.lua").read_text("utf-8")

# What an error means. The client removes some codes from the text, so words are listed too.
_REMEDIES = {
    "OOM|maxmemory": "the server is out of memory. Raise maxmemory, or keep the log for fewer days",
    "READONLY|read only replica": "the server is a read-only replica. Use the URL of the primary",
    "MASTERDOWN|MASTER is down": "the server is a replica without a primary. Use the primary's URL",
    "MISCONF|Errors writing": "the server cannot write to its disk. Free some space on the server",
    "NOREPLICAS|good replicas": "the server has too few replicas. Start more replicas",
    "LOADING|is loading": "the server is loading its data. Wait until it has started",
    "WRONGTYPE|wrong kind": "a key has another type than expected. Delete it or use another prefix",
    "NOPERM|permissions": "the user lacks a permission. Allow it all commands on the prefix's keys",
}
_TRANSIENT_ERRORS = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    MasterDownError,
    OSError,
)
_SAFE_SETTINGS = (
    ("appendonly", "yes", "a restart of Redis loses the writes since its last snapshot"),
    ("maxmemory-policy", "noeviction", "Redis may evict beliefs when memory runs out"),
)


class RedisStore:
    """A client of one Redis server. It connects when it is first used."""

    def __init__(self, url: str, prefix: str = "turncoat") -> None:
        """Take a URL without a password: that comes from the environment."""
        self._address = url
        self._prefix = prefix.encode() + b":"
        self._log = self._prefix + b"log"
        self._log_by_time, self._log_by_id = self._log + b"-by-time", self._log + b"-by-id"
        self._closed, self._n_running, self._idle = False, 0, asyncio.Event()
        options: dict[str, Any] = {"max_connections": _N_CONNECTIONS, "protocol": 2}
        names = "timeout", "socket_timeout", "socket_connect_timeout"
        options |= dict.fromkeys(names, _TIMEOUT_S)
        options |= {"username": os.environ.get(USERNAME), "password": os.environ.get(PASSWORD)}
        # A write without a reply may have happened, so only the caller can decide to repeat it.
        options["retry"] = Retry(NoBackoff(), 0)
        if url.startswith("rediss"):
            options["ssl_check_hostname"] = True
        self._pool = BlockingConnectionPool.from_url(url, **options)
        self._client = Redis.from_pool(self._pool)
        self._scripts = {lua: self._client.register_script(lua) for lua in (_WRITE, _DELETE)}
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """Return the records that exist, by key."""
        values = await self._call("MGET", *map(self._record, keys)) if keys else []
        found = zip(keys, values, strict=True)
        return {key: _parse_record(value) for key, value in found if value is not None}

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Write the groups whose records are at their expected counters."""
        protocol.check_write(groups)
        keys, values, plan = [self._log, self._log_by_time, self._log_by_id], [b""], []
        for writes, entries in groups:
            records: list[Any] = []
            for key, expected, data, increment in writes:
                keys.append(self._record(key))
                values.append(b"%d:%b" % (expected + increment, data))
                records.append((len(keys), f"{expected:d}:" if expected else "", len(values)))
            added: list[Any] = []
            for entry in entries:
                first, histories = len(values) + 1, []
                values += _entry_fields(entry)
                for key, counter in entry.parties:
                    keys.append(self._history(key))
                    histories.append((len(keys), str(counter)))
                written_at = repr(float(entry.written_at))
                hash = _hash_id(entry.transaction_id) if entry.kind == SCORE else ""
                added.append((first, len(values), written_at, histories, hash))
            plan.append({"records": records, "entries": added})
        values[0] = msgspec.json.encode(plan)
        return [result == 1 for result in await self._run(_WRITE, keys, values)]

    async def read_history(
        self, key: str, limit: int = 100, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's latest log entries, newest first."""
        found: list[LogEntry] = []
        history, start, page = self._history(key), "+inf", min(max(limit, 10), _HISTORY_PAGE)
        while len(found) < limit:
            range_ = history, start, "-inf", "WITHSCORES", "LIMIT", 0, page
            flat = await self._call("ZREVRANGEBYSCORE", *range_)
            entries = await self._read_entries(flat[::2])
            if gone := [id for id in flat[::2] if id not in entries]:  # somebody trimmed the log
                await self._call("ZREM", history, *gone)
            parsed = starmap(_parse_entry, entries.items())
            found += [entry for entry in parsed if protocol.matches(entry, filters)]
            if len(flat) < 2 * page:
                break
            start = f"({flat[-1].decode()}"
        return found[: max(limit, 0)]

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """Return log entries after a cursor."""
        protocol.check_cursor(after, r"[0-9]{1,19}-[0-9]{1,19}")
        start = f"({after}" if after else "-"
        found = await self._call("XRANGE", self._log, start, "+", "COUNT", max(limit, 0))
        return [_parse_entry(id, fields) for id, fields in found or []]

    async def find_customers(self, transaction_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the keys of the customers with a scored transaction of each id."""
        found = {}
        for id in transaction_ids:
            hash, page = _hash_id(id), ("LIMIT", 0, _HISTORY_PAGE)
            ids = await self._call("ZRANGEBYSCORE", self._log_by_id, hash, hash, *page)
            entries = starmap(_parse_entry, (await self._read_entries(ids)).items())
            keys = sorted({one.parties[0][0] for one in entries if one.transaction_id == id})
            found[id] = tuple(keys[: protocol.MAX_CUSTOMERS])
        return found

    async def delete_entries_before(self, written_before: float, limit: int = 10_000) -> int:
        """Delete the oldest entries, in batches."""
        n_deleted, before = 0, f"({float(written_before)!r}"
        while n_deleted < limit:
            page = "-inf", before, "LIMIT", 0, min(limit - n_deleted, _DELETE_BATCH)
            ids = await self._call("ZRANGEBYSCORE", self._log_by_time, *page)
            n_deleted += (await self._delete(ids))[0]
            if len(ids) < page[-1]:
                break
        return n_deleted

    async def erase(self, key: str) -> int:
        """Delete a party's entries in batches, and its record with the last one."""
        n_deleted, is_erased = 0, 0
        while not is_erased:
            ids = await self._call("ZRANGE", self._history(key), 0, _DELETE_BATCH - 1)
            n_last, is_erased = await self._delete(ids, key)
            n_deleted += n_last
        return n_deleted

    async def _delete(self, ids: Sequence[bytes], erased: str | None = None) -> Any:
        """Delete entries everywhere; return how many, and whether `erased` has none left."""
        records = [] if erased is None else [self._record(erased)]
        parties = set() if erased is None else {erased.encode()}
        for fields in (await self._read_entries(ids)).values():
            parties.update(fields[name] for name in fields if name.endswith(b"_key"))
        histories = [self._prefix + b"history:" + key for key in parties]
        keys = [self._log, self._log_by_time, self._log_by_id, *histories, *records]
        return await self._run(_DELETE, keys, ["erase" if records else "", *ids])

    async def _read_entries(self, ids: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Return the fields of the log entries that exist, by id."""
        async with self._using(), self._client.pipeline(transaction=False) as pipeline:
            for id in ids:
                pipeline.xrange(self._log, id, id)
            return dict(found[0] for found in await pipeline.execute() if found)

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        newest = await self._call("ZREVRANGE", self._log_by_time, 0, 0, "WITHSCORES")
        return float(newest[1]) if newest else None

    async def check_writable(self) -> None:
        """Set a key."""
        await self._call("SET", self._prefix + b"write-check", b"ok")

    async def log_durability(self) -> None:
        """Log `appendonly` and `maxmemory-policy`; warn if writes can be lost or keys evicted."""
        names = "appendonly", "appendfsync", "maxmemory", "maxmemory-policy"
        try:
            found = {name: (await self._call("CONFIG", "GET", name))[1].decode() for name in names}
        except (StoreError, IndexError) as problem:
            text = "store %s: appendonly and maxmemory-policy could not be checked (%s)"
            _logger.warning(text, self._address, problem)
            return
        settings = ", ".join(f"{name}={value}" for name, value in found.items())
        _logger.info("store %s: %s", self._address, settings)
        for name, wanted, loss in _SAFE_SETTINGS:
            if found[name] != wanted:
                text = "store %s: %s is %s, so %s. Set it to %s"
                _logger.warning(text, self._address, name, found[name], loss, wanted)

    async def close(self) -> None:
        """Finish running operations and disconnect."""
        self._closed = True
        while self._n_running:
            self._idle.clear()
            await self._idle.wait()
        await self._client.aclose()

    async def _run(self, script: str, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        """Run a script, by its digest if the server knows it."""
        async with self._using():
            return await self._scripts[script](keys, args)

    async def _call(self, *command: Any) -> Any:
        """Send a command."""
        async with self._using():
            return await self._execute(*command)

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Turn errors of the server and of the connection into a StoreError."""
        if self._closed:
            raise StoreError(f"the store {self._address} is closed; open it again")
        self._n_running += 1
        try:
            yield
        except (RedisError, OSError) as problem:
            text = str(problem).rstrip(".") or type(problem).__name__
            remedy = next((_REMEDIES[one] for one in _REMEDIES if re.search(one, text)), "")
            if "replica" in remedy:  # after a failover the same address may be the new primary
                await self._pool.disconnect(inuse_connections=False)
            remedy = remedy or "the request failed. Check that the server is up"
            is_refused = isinstance(problem, AuthenticationError | AuthorizationError)
            can_recover = isinstance(problem, _TRANSIENT_ERRORS) and not is_refused
            error = StoreUnavailableError if can_recover else StoreError
            raise error(f"the store {self._address}: {remedy} ({text})") from problem
        finally:
            self._n_running -= 1
            self._idle.set()

    def _record(self, key: str) -> bytes:
        return self._prefix + b"record:" + key.encode()

    def _history(self, key: str) -> bytes:
        return self._prefix + b"history:" + key.encode()


def _hash_id(transaction_id: str) -> str:
    """Return a hash that a sorted set's score, a double, holds exactly."""
    return str(int.from_bytes(blake2b(transaction_id.encode(), digest_size=6).digest()))


def _parse_record(value: bytes) -> StoredRecord:
    counter, separator, data = value.partition(b":")
    is_number = separator and counter.isdigit() and len(counter) < 20
    return protocol.validate_record(int(counter) if is_number else None, data)


def _entry_fields(entry: LogEntry) -> list[bytes]:
    """Return an entry as names and values of the stream's fields."""
    kind, transaction_id, time, written_at, parties, belief_updated, content, _ = entry
    texts = ["kind", kind, "transaction_id", transaction_id]
    texts += ["time", repr(float(time)), "written_at", repr(float(written_at))]
    for place, (key, counter) in enumerate(parties):
        name = _name_party(place)
        texts += [f"{name}_key", key, f"{name}_counter", str(counter)]
    texts += ["belief_updated", str(int(belief_updated)), "content"]
    return [*(text.encode() for text in texts), content]


def _name_party(place: int) -> str:
    """Return how the fields of an entry's party start."""
    return f"counterparty_{place}" if place else "customer"


def _parse_entry(id: bytes, fields: Mapping[bytes, bytes]) -> LogEntry:
    """Return the entry with these fields; raise CorruptRecordError if it is damaged."""
    try:
        text = {name.decode(): fields[name].decode() for name in fields if name != b"content"}
        names = map(_name_party, range(sum(name.endswith("_key") for name in text)))
        parties = tuple((text[f"{name}_key"], int(text[f"{name}_counter"])) for name in names)
        time, written_at = float(text["time"]), float(text["written_at"])
        updated, content = text["belief_updated"] == "1", fields[b"content"]
        id_, kind = text["transaction_id"], text["kind"]
        return LogEntry(kind, id_, time, written_at, parties, updated, content, id.decode())
    except (KeyError, ValueError) as problem:
        damage = f"entry {id.decode()} of the Redis log is damaged ({problem})"
        remedy = "Delete it with XDEL, or restore the server from a backup"
        raise CorruptRecordError(f"{damage}. {remedy}") from problem
