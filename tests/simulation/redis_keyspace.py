"""What a Redis server in memory keeps: strings, lists, hashes and sets, each until it expires; a command is a method `do_…`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class RedisError(Exception):
    """An error reply."""


class Status(bytes):
    """A reply that is neither data nor an error."""


OK = Status(b"OK")
KINDS: dict[type, bytes] = {bytes: b"string", list: b"list", dict: b"hash", set: b"set"}


def wrong_type() -> RedisError:
    return RedisError("WRONGTYPE Operation against a key holding the wrong kind of value")


class Keyspace:
    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._values: dict[bytes, Any] = {}
        self._expires_ms: dict[bytes, int] = {}

    def snapshot(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        return copy.deepcopy((self._values, self._expires_ms))

    def restore(self, copied: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        self._values, self._expires_ms = copy.deepcopy(copied)

    def find(self, key: bytes) -> Any:
        expires_ms = self._expires_ms.get(key)
        if expires_ms is not None and expires_ms <= self._now_ms:
            del self._values[key], self._expires_ms[key]
        return self._values.get(key)

    def expires_ms(self, key: bytes) -> int:
        return self._expires_ms[key]

    def names(self) -> list[bytes]:
        return [key for key in list(self._values) if self.find(key) is not None]

    @property
    def _now_ms(self) -> int:
        return self._now_us() // 1000

    def _of(self, kind: type[T], key: bytes) -> T | None:
        value = self.find(key)
        if value is not None and not isinstance(value, kind):
            raise wrong_type()
        return value

    def _made(self, kind: type[T], key: bytes) -> T:
        """What is there, or begun now."""
        value = self._of(kind, key)
        if value is None:
            value = self._values[key] = kind()
        return value

    def _drop_if_empty(self, key: bytes) -> None:
        if not self._values.get(key, True):
            self.do_del(key)

    # -- any key -----------------------------------------------------------------------------------

    def do_time(self) -> list[bytes]:
        now_us = self._now_us()
        return [str(now_us // 1_000_000).encode(), str(now_us % 1_000_000).encode()]

    def do_type(self, key: bytes) -> Status:
        value = self.find(key)
        return Status(b"none" if value is None else KINDS.get(type(value)) or value.kind)

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.find(key) is not None for key in keys)

    def do_scan(self, _: bytes, *options: bytes) -> list[Any]:
        """All of it at once: names that begin so, of strings."""
        begin = options[options.index(b"MATCH") + 1].removesuffix(b"*").replace(b"\\", b"")
        found = [name for name in self.names() if name.startswith(begin) and isinstance(self._values[name], bytes)]
        return [b"0", found]

    def do_del(self, *keys: bytes) -> int:
        found = self.do_exists(*dict.fromkeys(keys))
        for key in keys:
            self._values.pop(key, None)
            self._expires_ms.pop(key, None)
        return found

    def do_pttl(self, key: bytes) -> int:
        if self.find(key) is None:
            return -2
        return self._expires_ms[key] - self._now_ms if key in self._expires_ms else -1

    def do_pexpire(self, key: bytes, ttl_ms: bytes) -> int:
        if self.find(key) is None:
            return 0
        self._expires_ms[key] = self._now_ms + int(ttl_ms)
        return 1

    # -- strings -----------------------------------------------------------------------------------

    def do_get(self, key: bytes) -> bytes | None:
        return self._of(bytes, key)

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        before = self._of(bytes, key) if options == (b"GET",) else None
        self._values[key] = value
        self._expires_ms.pop(key, None)
        match options:
            case ():
                return OK
            case (b"PX", ttl_ms):
                self._expires_ms[key] = self._now_ms + int(ttl_ms)
                return OK
            case (b"GET",):
                return before
        raise RedisError("ERR syntax error")

    # -- lists -------------------------------------------------------------------------------------

    def do_lpop(self, key: bytes) -> bytes | None:
        queue: list[bytes] | None = self._of(list, key)
        if queue is None:
            return None
        first = queue.pop(0)
        self._drop_if_empty(key)
        return first

    def do_rpush(self, key: bytes, value: bytes) -> int:
        queue: list[bytes] = self._made(list, key)
        queue.append(value)
        return len(queue)

    def do_lrem(self, key: bytes, _count: bytes, value: bytes) -> int:
        queue: list[bytes] = self._of(list, key) or []
        if value not in queue:
            return 0
        queue.remove(value)
        self._drop_if_empty(key)
        return 1

    # -- hashes ------------------------------------------------------------------------------------

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        return self._of(dict, key) or {}

    def do_hset(self, key: bytes, *words: bytes) -> int:
        if not words or len(words) % 2:
            raise RedisError("ERR wrong number of arguments for 'hset' command")
        fields: dict[bytes, bytes] = self._made(dict, key)
        before = len(fields)
        fields.update(zip(words[::2], words[1::2], strict=True))
        return len(fields) - before

    def do_hget(self, key: bytes, name: bytes) -> bytes | None:
        return self._hash(key).get(name)

    def do_hmget(self, key: bytes, *names: bytes) -> list[bytes | None]:
        return [*map(self._hash(key).get, names)]

    def do_hgetall(self, key: bytes) -> dict[bytes, bytes]:
        return dict(self._hash(key))

    def do_hvals(self, key: bytes) -> list[bytes]:
        return list(self._hash(key).values())

    def do_hexists(self, key: bytes, name: bytes) -> int:
        return int(name in self._hash(key))

    def do_hstrlen(self, key: bytes, name: bytes) -> int:
        return len(self._hash(key).get(name, b""))

    def do_hincrby(self, key: bytes, name: bytes, delta: bytes) -> int:
        fields: dict[bytes, bytes] = self._made(dict, key)
        now = int(fields.get(name, b"0")) + int(delta)
        fields[name] = str(now).encode()
        return now

    def do_hdel(self, key: bytes, *names: bytes) -> int:
        fields = self._hash(key)
        gone = [fields.pop(name) for name in dict.fromkeys(names) if name in fields]
        self._drop_if_empty(key)
        return len(gone)

    # -- sets --------------------------------------------------------------------------------------

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        kept: set[bytes] = self._made(set, key)
        before = len(kept)
        kept.update(members)
        return len(kept) - before

    def do_srem(self, key: bytes, *members: bytes) -> int:
        kept: set[bytes] = self._of(set, key) or set()
        gone = kept & set(members)
        kept -= gone
        self._drop_if_empty(key)
        return len(gone)

    def do_smismember(self, key: bytes, *members: bytes) -> list[int]:
        kept: set[bytes] = self._of(set, key) or set()
        return [int(member in kept) for member in members]
