"""A Redis server in memory: the commands that the lock store uses, and a real Lua for its script.

It answers bytes with bytes, in one step, by the clock it is given. A key is gone in the millisecond in which it expires.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from lupa.lua51 import LuaError, LuaRuntime

EDITS: tuple[tuple[str, str], ...] = ()
"""What a mutant changes in a script before it is run."""

Hear = Callable[[bytes], None]


class RedisError(Exception):
    """An error reply."""


class Status(bytes):
    """A reply that is neither data nor an error."""


class RedisServer:
    def __init__(self, now_us: Callable[[], int], ran: Callable[[list[bytes], list[bytes], bytes], None]) -> None:
        self._now_us = now_us
        self._ran = ran
        """Told of each run of a script: its keys, its arguments, its answer."""
        self._values: dict[bytes, Any] = {}
        self._expires_ms: dict[bytes, int] = {}
        self._channels: dict[bytes, list[Hear]] = {}
        self._scripts: dict[bytes, bytes] = {}
        self._answers: list[bytes] = []

    def feed(self, request: bytes, hear: Hear) -> bytes:
        """The replies to whole commands. What is published later goes to `hear`."""
        replies = []
        for words in _commands(request):
            try:
                replies.append(_encode(self._carry_out(words, hear)))
            except RedisError as error:
                replies.append(f"-{error}\r\n".encode())
        return b"".join(replies)

    def forget(self, hear: Hear) -> None:
        """Its connection has ended."""
        for listening in self._channels.values():
            if hear in listening:
                listening.remove(hear)

    def snapshot(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        return copy.deepcopy((self._values, self._expires_ms))

    def restore(self, copied: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        self._values, self._expires_ms = copy.deepcopy(copied)

    def find(self, key: bytes) -> Any:
        if self._expires_ms.get(key, self._now_ms + 1) <= self._now_ms:
            del self._values[key], self._expires_ms[key]
        return self._values.get(key)

    def expires_ms(self, key: bytes) -> int:
        return self._expires_ms[key]

    def keys(self) -> list[bytes]:
        return [key for key in list(self._values) if self.find(key) is not None]

    @property
    def _now_ms(self) -> int:
        return self._now_us() // 1000

    # -- commands ----------------------------------------------------------------------------------

    def _carry_out(self, words: list[bytes], hear: Hear) -> Any:
        match words:
            case [b"HELLO", *_]:
                return [b"proto", 3]
            case [b"SCRIPT", b"LOAD", text]:
                sha = hashlib.sha1(text).hexdigest().encode()
                self._scripts[sha] = text
                return sha
            case [b"EVALSHA", sha, count, *rest]:
                if sha not in self._scripts:
                    raise RedisError("NOSCRIPT No matching script")
                return self._run(self._scripts[sha], int(count), rest)
            case [b"EVAL", text, count, *rest]:
                return self._run(text, int(count), rest)
            case [b"SUBSCRIBE", channel]:
                self._channels.setdefault(channel, []).append(hear)
                return _Push([b"subscribe", channel, 1])
        raise RedisError(f"ERR unknown command {words[0]!r}")

    def _run(self, text: bytes, count: int, rest: list[bytes]) -> bytes:
        keys, arguments = rest[:count], rest[count:]
        lua, script = _compiled(text, EDITS)
        api = lua.table_from({b"call": functools.partial(self._call, lua), b"pcall": functools.partial(self._try, lua)})
        api[b"sha1hex"] = lambda value: hashlib.sha1(value).hexdigest().encode()
        try:
            answer: bytes = script(lua.table_from(keys), lua.table_from(arguments), api, _cjson(lua))
        except LuaError as error:
            raise RedisError(f"ERR {error}") from error
        self._ran(keys, arguments, answer)
        return answer

    def _call(self, lua: Any, *words: Any) -> Any:
        return _to_lua(lua, self._command(*map(_text, words)))

    def _try(self, lua: Any, *words: Any) -> Any:
        try:
            return self._call(lua, *words)
        except RedisError as error:
            return lua.table_from({b"err": str(error).encode()})

    def _command(self, name: bytes, *args: bytes) -> Any:
        verb: Callable[..., Any] = getattr(self, f"_{name.decode().lower()}")
        return verb(*args)

    def _time(self) -> list[bytes]:
        now_us = self._now_us()
        return [str(now_us // 1_000_000).encode(), str(now_us % 1_000_000).encode()]

    def _exists(self, *keys: bytes) -> int:
        return sum(self.find(key) is not None for key in keys)

    def _get(self, key: bytes) -> bytes | None:
        value = self.find(key)
        if value is not None and not isinstance(value, bytes):
            raise RedisError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        before = self._get(key)
        self._values[key] = value
        self._expires_ms.pop(key, None)
        match options:
            case (b"PX", ttl_ms):
                self._expires_ms[key] = self._now_ms + int(ttl_ms)
            case (b"GET",):
                return before
        return Status(b"OK")

    def _del(self, key: bytes) -> int:
        found = self.find(key) is not None
        self._values.pop(key, None)
        self._expires_ms.pop(key, None)
        return int(found)

    def _pttl(self, key: bytes) -> int:
        if self.find(key) is None:
            return -2
        return self._expires_ms[key] - self._now_ms if key in self._expires_ms else -1

    def _pexpire(self, key: bytes, ttl_ms: bytes) -> int:
        if self.find(key) is None:
            return 0
        self._expires_ms[key] = self._now_ms + int(ttl_ms)
        return 1

    def _lpop(self, key: bytes) -> bytes | None:
        queue: list[bytes] | None = self.find(key)
        if queue is None:
            return None
        first = queue.pop(0)
        self._drop_if_empty(key)
        return first

    def _rpush(self, key: bytes, value: bytes) -> int:
        if self.find(key) is None:
            self._values[key] = []
        self._values[key].append(value)
        return len(self._values[key])

    def _lrem(self, key: bytes, _count: bytes, value: bytes) -> int:
        queue: list[bytes] = self.find(key) or []
        if value not in queue:
            return 0
        queue.remove(value)
        self._drop_if_empty(key)
        return 1

    def _hset(self, key: bytes, name: bytes, value: bytes) -> int:
        if self.find(key) is None:
            self._values[key] = {}
        added = name not in self._values[key]
        self._values[key][name] = value
        return int(added)

    def _hget(self, key: bytes, name: bytes) -> bytes | None:
        return (self.find(key) or {}).get(name)

    def _hdel(self, key: bytes, name: bytes) -> int:
        found = self.find(key) is not None and self._values[key].pop(name, None) is not None
        self._drop_if_empty(key)
        return int(found)

    def _hvals(self, key: bytes) -> list[bytes]:
        return list((self.find(key) or {}).values())

    def _xadd(self, *_: bytes) -> bytes:
        return b"0-0"  # a history that no story reads

    def _publish(self, channel: bytes, message: bytes) -> int:
        listening = self._channels.get(channel, [])
        for hear in tuple(listening):
            hear(_encode(_Push([b"message", channel, message])))
        return len(listening)

    def _drop_if_empty(self, key: bytes) -> None:
        if not self._values.get(key, True):
            self._del(key)


# -- Lua -------------------------------------------------------------------------------------------------


@functools.cache
def _compiled(text: bytes, edits: tuple[tuple[str, str], ...]) -> tuple[Any, Any]:
    for right, wrong in edits:
        assert right.encode() in text, f"no such line in the script: {right}"
        text = text.replace(right.encode(), wrong.encode())
    lua = LuaRuntime(encoding=None, unpack_returned_tuples=False)
    script = lua.execute(b"return function(KEYS, ARGV, redis, cjson)\n" + text + b"\nend")
    return lua, script


@functools.cache
def _cjson(lua: Any) -> Any:
    def encode(table: Any) -> bytes:
        return json.dumps([v.decode() if isinstance(v, bytes) else v for v in table.values()]).encode()

    def decode(text: bytes) -> Any:
        return lua.table_from([v.encode() if isinstance(v, str) else v for v in json.loads(text)])

    return lua.table_from({b"encode": encode, b"decode": decode})


def _text(word: Any) -> bytes:
    return word if isinstance(word, bytes) else f"{word:.17g}".encode()


def _to_lua(lua: Any, reply: Any) -> Any:
    if reply is None:
        return False
    if isinstance(reply, Status):
        return lua.table_from({b"ok": bytes(reply)})
    return lua.table_from(reply) if isinstance(reply, list) else reply


# -- bytes -----------------------------------------------------------------------------------------------


class _Push(list[Any]):
    """A message that answers nothing."""


def _commands(request: bytes) -> Iterator[list[bytes]]:
    at = 0

    def number() -> int:
        nonlocal at
        end = request.index(b"\r\n", at)
        found, at = int(request[at + 1 : end]), end + 2
        return found

    while at < len(request):
        words = []
        for _ in range(number()):
            length = number()
            words.append(request[at : at + length])
            at += length + 2
        yield words


def _encode(reply: Any) -> bytes:
    if isinstance(reply, list):
        kind = ">" if isinstance(reply, _Push) else "*"
        return f"{kind}{len(reply)}\r\n".encode() + b"".join(map(_encode, reply))
    if isinstance(reply, int):
        return f":{reply}\r\n".encode()
    return b"$%d\r\n%s\r\n" % (len(reply), reply)
