"""Beliefs in a Redis server, which many machines may share.

How long a write lasts is the server's setting (`appendonly`, `appendfsync`). The keys of a write must lie on one server: a cluster that
spreads them cannot change them all together.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import (
    BlockingConnectionPool,
    Connection,
    Redis,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from turncoat.errors import CorruptRecordError, StoreError
from turncoat.serving.stores.packing import packed, unpacked
from turncoat.serving.stores.protocol import (
    LogEntry,
    StoredRecord,
    WriteGroup,
    check_write,
    invalid_cursor,
    validate_record,
)

PASSWORD, USERNAME = "TURNCOAT_REDIS_PASSWORD", "TURNCOAT_REDIS_USERNAME"

_TIMEOUT = 2.0  # seconds for an answer
_N_CONNECTIONS = 16
_COUNTER = 8  # bytes before a record's data
_PAGE = 100  # index members looked at in one call of the script
_REMOVED_AT_ONCE = 100  # entries, so that others need not wait for long
_PLACE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})", re.ASCII)

# A script runs alone, and an error half way would leave what it did so far. So each looks at everything before it changes anything.
# In the indices an id has a second half of ten digits, so that equal scores are in the order of the log.
_MEMBERS = """
local function member_of(id)
  local first, second = id:match('(%d+)-(%d+)')
  return first .. '-' .. ('0'):rep(10 - #second) .. second
end
local function line_of(log, member)
  local id = member:gsub('%-0+(%d)', '-%1')
  return redis.call('XRANGE', log, id, id)[1]
end
"""

# Takes out an entry, if it is there, and what points to it. Answers how many went.
_REMOVE = """
local function remove(log, times, indices, member)
  local line, n_removed = line_of(log, member), 0
  if line then
    for i = 14, #line[2], 4 do redis.call('ZCARD', indices .. line[2][i]) end
    for i = 14, #line[2], 4 do redis.call('ZREM', indices .. line[2][i], member) end
    n_removed = redis.call('XDEL', log, line[1])
  end
  redis.call('ZREM', times, member)
  return n_removed
end
"""

# KEYS: the log, the index by `at`; for each group a record for each change, an index for each party of each entry.
# ARGV: for each group how many changes, how many entries and how many parties these have; for each change what it must begin with and its
# new value; for each entry how many fields and these. Answers for each group 1 if it was written, 0 if not.
_WRITE = (
    _MEMBERS
    + """
local groups, a, k = {}, 1, 3
while a <= #ARGV do
  local n, n_entries, n_parties = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local group = {n = n, n_entries = n_entries, arg = a + 3, key = k, taken = 1}
  for i = 0, n - 1 do
    if redis.call('GETRANGE', KEYS[k + i], 0, 7) ~= ARGV[a + 3 + 2 * i] then group.taken = 0 end
  end
  for i = k + n, k + n + n_parties - 1 do redis.call('ZCARD', KEYS[i]) end
  a, k = a + 3 + 2 * n, k + n + n_parties
  for _ = 1, n_entries do a = a + 1 + tonumber(ARGV[a]) end
  groups[#groups + 1] = group
end
redis.call('XLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
local function write(group)
  a, k = group.arg, group.key
  for _ = 1, group.n do
    redis.call('SET', KEYS[k], ARGV[a + 1])
    a, k = a + 2, k + 1
  end
  for _ = 1, group.n_entries do
    local n_fields = tonumber(ARGV[a])
    local member = member_of(redis.call('XADD', KEYS[1], '*', unpack(ARGV, a + 1, a + n_fields)))
    redis.call('ZADD', KEYS[2], ARGV[a + 8], member)
    for i = 16, n_fields, 4 do
      redis.call('ZADD', KEYS[k], ARGV[a + i], member)
      k = k + 1
    end
    a = a + n_fields + 1
  end
end
local answers = {}
for i, group in ipairs(groups) do
  if group.taken == 1 then write(group) end
  answers[i] = group.taken
end
return answers
"""
)

# KEYS: the log, a party's index. ARGV: from and to which member, the latest time, how many entries, 1 for moves only, the id if one is
# asked for. Answers how many members were there, and the entries. Members whose entry is gone are removed.
_HISTORY = (
    _MEMBERS
    + """
local members = redis.call('ZREVRANGE', KEYS[2], ARGV[1], ARGV[2])
local latest, limit, moved, id = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local n_gone, found = 0, {}
for _, member in ipairs(members) do
  local line = line_of(KEYS[1], member)
  if not line then
    redis.call('ZREM', KEYS[2], member)
    n_gone = n_gone + 1
  elseif tonumber(line[2][6]) <= latest and line[2][10] >= moved and (not id or id == line[2][4]) then
    found[#found + 1] = line
    if #found == limit then break end
  end
end
return {#members, n_gone, found}
"""
)

# KEYS: the log, the index by `at`. ARGV: the moment, how many, what the parties' indices begin with. Answers how many it saw and removed.
_FORGET = (
    _MEMBERS
    + _REMOVE
    + """
local members = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
local n_removed = 0
for _, member in ipairs(members) do n_removed = n_removed + remove(KEYS[1], KEYS[2], ARGV[3], member) end
return {#members, n_removed}
"""
)

# KEYS: the log, the index by `at`, a party's index, its record. ARGV: how many, what the parties' indices begin with. Answers how many it
# saw and removed. Where it saw fewer than it might, there are no more, and the record goes.
_ERASE = (
    _MEMBERS
    + _REMOVE
    + """
local members = redis.call('ZRANGE', KEYS[3], 0, ARGV[1] - 1)
redis.call('XLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
local n_removed = 0
for _, member in ipairs(members) do
  n_removed = n_removed + remove(KEYS[1], KEYS[2], ARGV[2], member)
  redis.call('ZREM', KEYS[3], member)
end
if #members < tonumber(ARGV[1]) then redis.call('DEL', KEYS[4]) end
return {#members, n_removed}
"""
)


class RedisStore:
    """Records under `PREFIX:r:KEY`, the log in the stream `PREFIX:log`, and in `PREFIX:h:KEY` and `PREFIX:at` where to find what in it.

    The password is taken from the environment (TURNCOAT_REDIS_PASSWORD, TURNCOAT_REDIS_USERNAME). Connects when it is first used.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        *,
        path: str | None = None,
        tls: bool = False,
        prefix: str = "turncoat",
    ) -> None:
        """With `path`, a socket of this machine instead of host and port."""
        self._where = f"redis at {path or f'{host}:{port}'}, db {db}"
        self._prefix = prefix.encode()
        self._closed, self._n_begun, self._ended = False, 0, asyncio.Event()
        options: dict[str, Any] = {"connection_class": Connection, "host": host, "port": port}
        if path is not None:
            options = {"connection_class": UnixDomainSocketConnection, "path": path}
        elif tls:
            options |= {"connection_class": SSLConnection, "ssl_check_hostname": True}
        pool = BlockingConnectionPool(
            **options,
            max_connections=_N_CONNECTIONS,
            timeout=_TIMEOUT,
            db=db,
            username=os.environ.get(USERNAME),
            password=os.environ.get(PASSWORD),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            retry=Retry(
                NoBackoff(), 0
            ),  # a write whose answer was lost may have happened: only who sent it can tell what to do
            protocol=2,
        )
        self._client = Redis.from_pool(pool)
        self._call: Callable[..., Awaitable[Any]] = self._client.execute_command

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """The records that are there."""
        async with self._using():
            values = await self._call("MGET", *map(self._record, keys)) if keys else []
        held = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        return {
            key: validate_record(int.from_bytes(value[:_COUNTER]), value[_COUNTER:])
            for key, value in held.items()
        }

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Each group, or nothing of it if a counter is not as expected."""
        check_write(groups)
        keys, args = [self._log, self._times], list[bytes | int]()
        for changes, entries in groups:
            args += [len(changes), len(entries), sum(len(entry.parties) for entry in entries)]
            keys += [self._record(change.key) for change in changes]
            for change in changes:
                args += [
                    _counter(change.expected_counter) if change.expected_counter else b"",
                    _counter(change.expected_counter + change.increment) + change.data,
                ]
            for entry in entries:
                fields = _fields(entry)
                args += [len(fields), *fields]
                keys += [self._index(key) for key, _ in entry.parties]
        async with self._using():
            return [taken == 1 for taken in await self._run(_WRITE, keys, args)]

    async def read_history(
        self,
        key: str,
        *,
        until: float = math.inf,
        transaction_id: str | None = None,
        belief_updated: bool = False,
        limit: int = 100,
    ) -> list[LogEntry]:
        """A party's latest entries, newest first."""
        found: list[LogEntry] = []
        start, n_members = 0, _PAGE
        latest = "1e999" if until == math.inf else repr(float(until))  # which Lua reads as infinity
        async with self._using():
            while n_members == _PAGE and len(found) < limit:
                args: list[str | int] = [
                    start,
                    start + _PAGE - 1,
                    latest,
                    limit - len(found),
                    int(belief_updated),
                ]
                args += [] if transaction_id is None else [transaction_id]
                n_members, n_gone, lines = await self._run(
                    _HISTORY, [self._log, self._index(key)], args
                )
                start += n_members - n_gone
                found += [
                    _entry(place, dict(zip(flat[::2], flat[1::2], strict=True)))
                    for place, flat in lines
                ]
        return found

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """The log from after a place."""
        start = _next(after)
        if limit < 1:
            return []
        async with self._using():
            return [
                _entry(place, fields)
                for place, fields in await self._call(
                    "XRANGE", self._log, start, "+", "COUNT", limit
                )
            ]

    async def delete_entries_before(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries, some at a time."""
        removed = 0
        async with self._using():
            while removed < limit:
                wanted = min(limit - removed, _REMOVED_AT_ONCE)
                seen, n = await self._run(
                    _FORGET,
                    [self._log, self._times],
                    [repr(float(before)), wanted, self._index("")],
                )
                removed += n
                if seen < wanted:
                    break
        return removed

    async def erase(self, key: str) -> int:
        """Remove a party's entries, some at a time, and its record with the last of them."""
        removed, seen = 0, _REMOVED_AT_ONCE
        keys = [self._log, self._times, self._index(key), self._record(key)]
        async with self._using():
            while seen == _REMOVED_AT_ONCE:
                seen, n = await self._run(_ERASE, keys, [_REMOVED_AT_ONCE, self._index("")])
                removed += n
        return removed

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        async with self._using():
            newest = await self._call("ZREVRANGE", self._times, 0, 0, "WITHSCORES")
        return float(newest[1]) if newest else None

    async def check_writable(self) -> None:
        """Set a key."""
        async with self._using():
            await self._call("SET", self._prefix + b":write-check", b"ok")

    async def close(self) -> None:
        """Finish what was begun, and hang up."""
        self._closed = True
        while self._n_begun:
            self._ended.clear()
            await self._ended.wait()
        await self._client.aclose()

    async def _run(
        self, script: str, keys: Sequence[bytes], args: Sequence[bytes | str | int]
    ) -> Any:
        """Run a script, by its name if the server knows it."""
        name = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._call("EVALSHA", name, len(keys), *keys, *args)
        except NoScriptError:
            return await self._call("EVAL", script, len(keys), *keys, *args)

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """While the server is used: what it and the line to it complain about, as a StoreError."""
        if self._closed:
            raise StoreError(f"the store ({self._where}) is closed; open it again")
        self._n_begun += 1
        try:
            yield
        except (RedisError, OSError) as problem:
            message = str(problem).rstrip(".") or type(problem).__name__
            raise StoreError(
                f"the store ({self._where}) did not answer as it should: {message}. Check that the server is up"
            ) from problem
        finally:
            self._n_begun -= 1
            self._ended.set()

    @property
    def _log(self) -> bytes:
        return self._prefix + b":log"

    @property
    def _times(self) -> bytes:
        return self._prefix + b":at"

    def _record(self, key: str) -> bytes:
        return self._prefix + b":r:" + key.encode()

    def _index(self, key: str) -> bytes:
        return self._prefix + b":h:" + key.encode()


def _counter(number: int) -> bytes:
    return number.to_bytes(_COUNTER)


def _fields(entry: LogEntry) -> list[bytes]:
    """An entry as the stream has it. The scripts count on the order."""
    pairs: list[tuple[str, str | bytes]] = [
        ("kind", entry.kind),
        ("id", entry.transaction_id),
        ("time", repr(float(entry.time))),
        ("at", repr(float(entry.written_at))),
        ("moved", str(int(entry.belief_updated))),
        ("content", packed(entry.content)),
    ]
    for i, (key, counter) in enumerate(entry.parties, 1):
        pairs += [(f"party{i}", key), (f"counter{i}", str(counter))]
    return [text if isinstance(text, bytes) else text.encode() for pair in pairs for text in pair]


def _entry(place: bytes, fields: Mapping[bytes, bytes]) -> LogEntry:
    """The entry that was written as these fields; a CorruptRecordError if none was."""
    try:
        kind, id, time, at, moved = (
            fields[name].decode() for name in (b"kind", b"id", b"time", b"at", b"moved")
        )
        n_parties = (len(fields) - 6) // 2
        parties = tuple(
            (fields[b"party%d" % i].decode(), int(fields[b"counter%d" % i]))
            for i in range(1, n_parties + 1)
        )
        return LogEntry(
            kind,
            id,
            float(time),
            float(at),
            parties,
            moved == "1",
            unpacked(fields[b"content"]),
            place.decode(),
        )
    except (KeyError, ValueError) as problem:
        raise CorruptRecordError(
            f"the log holds something that is no entry, at {place.decode()}: remove it, or use another prefix"
        ) from problem


def _next(after: str) -> str:
    """The first place there can be after one; a ValueError if it is none."""
    if not after:
        return "-"
    if not (match := _PLACE.fullmatch(after)):
        raise invalid_cursor(after)
    return f"{match[1]}-{int(match[2]) + 1}"
