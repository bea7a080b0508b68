"""A Redis server in memory: the commands that the lock store and the plane's store use, and a real Lua for their scripts.

It answers bytes with bytes, in one step, by the clock it is given. A key is gone in the millisecond in which it expires.
`test_redis_server.py` asks it and a real server the same.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lupa.lua51 import LuaError, LuaRuntime

from simulation.redis_keyspace import OK, RedisError, Status
from simulation.redis_sorted import Pairs, SortedSets, Streams

EDITS: tuple[tuple[str, str], ...] = ()
"""What a mutant changes in the scripts that have these lines, before they are run."""

Hear = Callable[[bytes], None]
Ran = Callable[[bytes, list[bytes], list[bytes], Any], None]

WRITES_MORE = {"HINCRBY", "HSET", "RPUSH", "SADD", "SET", "XADD", "ZADD"}
"""What a server does not do that has no memory left."""
WRITES = WRITES_MORE | {"DEL", "HDEL", "LPOP", "LREM", "PEXPIRE", "SREM", "XDEL", "ZREM"}
NO_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
READ_ONLY = "ERR Write commands are not allowed from read-only scripts."


class RedisServer(SortedSets, Streams):
    def __init__(self, now_us: Callable[[], int], ran: Ran) -> None:
        super().__init__(now_us)
        self._ran = ran
        """Told of each run of a script: its text, its keys, its arguments, its answer."""
        self.is_full = False
        """Whether no memory is left."""
        self.is_away = False
        """Whether nobody listens."""
        self._runs = 0
        self._channels: dict[bytes, list[Hear]] = {}
        self._scripts: dict[bytes, bytes] = {}
        self._transactions: dict[Hear, list[list[bytes]]] = {}
        self._apis: dict[Any, Any] = {}
        """By the runtime of a script, what it calls `redis`."""
        self._running: Script | None = None
        self._has_written = False
        """The script that is running."""

    def feed(self, request: bytes, hear: Hear) -> bytes:
        """The replies to whole commands. What is published later goes to `hear`."""
        return b"".join([self._answer(words, hear) for words in commands_of(request)])

    def forget(self, hear: Hear) -> None:
        """Its connection has ended."""
        self._transactions.pop(hear, None)
        for listening in self._channels.values():
            if hear in listening:
                listening.remove(hear)

    def restart(self) -> None:
        """It has everything that it had on its disk; and none of what it had in memory alone."""
        self._runs += 1
        self._channels.clear()
        self._scripts.clear()
        self._transactions.clear()

    # -- commands ----------------------------------------------------------------------------------

    def _answer(self, words: list[bytes], hear: Hear) -> bytes:
        try:
            return _encode(self._carry_out(words, hear))
        except RedisError as error:
            return f"-{error}\r\n".encode()

    def _carry_out(self, words: list[bytes], hear: Hear) -> Any:
        match words:
            case [b"MULTI"]:
                self._transactions[hear] = []
                return OK
            case [b"EXEC"]:
                return [Encoded(self._answer(each, hear)) for each in self._transactions.pop(hear)]
            case _ if hear in self._transactions:
                self._transactions[hear].append(words)
                return Status(b"QUEUED")
            case [b"HELLO", *_]:
                return {b"proto": 3}
            case [b"INFO", section]:
                return Text(self._about(section))
            case [b"SUBSCRIBE", channel]:
                self._channels.setdefault(channel, []).append(hear)
                return _Push([b"subscribe", channel, 1])
            case [b"EVALSHA" | b"EVAL" | b"SCRIPT", *_]:
                return self._script(words)
        return self._command(*words)

    def _script(self, words: list[bytes]) -> Any:
        match words:
            case [b"SCRIPT", b"LOAD", text]:
                return self._keep(text)
            case [b"EVALSHA", sha, count, *rest]:
                if sha not in self._scripts:
                    raise RedisError("NOSCRIPT No matching script. Please use EVAL.")
                return self._run(self._scripts[sha], int(count), rest)
            case [b"EVAL", text, count, *rest]:
                self._keep(text)
                return self._run(text, int(count), rest)
        raise RedisError("ERR unknown subcommand")

    def _about(self, section: bytes) -> str:
        told = {
            b"server": f"run_id:run{self._runs}",
            b"memory": "maxmemory_policy:noeviction",
            b"replication": "role:master",
        }
        return f"# {section.decode()}\r\n{told[section]}\r\n"

    def _command(self, name: bytes, *args: bytes) -> Any:
        word, method = _verb(name)
        verb: Callable[..., Any] | None = getattr(self, method, None)
        if verb is None:
            raise RedisError(f"ERR unknown command '{word}', with args beginning with: ")
        if word in WRITES:
            self._check_write(word)
        return verb(*args)

    def _check_write(self, word: str) -> None:
        script = self._running
        if script is not None and script.only_reads:
            raise RedisError(READ_ONLY)
        # Of a script that does not say what it does, the first write decides for all.
        if self.is_full and word in WRITES_MORE and not self._has_written:
            raise RedisError(NO_MEMORY)
        self._has_written = script is not None

    def do_publish(self, channel: bytes, message: bytes) -> int:
        listening = self._channels.get(channel, [])
        for hear in tuple(listening):
            hear(_encode(_Push([b"message", channel, message])))
        return len(listening)

    # -- scripts -----------------------------------------------------------------------------------

    def _keep(self, text: bytes) -> bytes:
        sha = _sha1(text)
        self._scripts[sha] = text
        return sha

    def _run(self, text: bytes, count: int, rest: list[bytes]) -> Any:
        keys, arguments = rest[:count], rest[count:]
        script = _compiled(text, EDITS)
        lua = script.lua
        if self.is_full and script.says_what and not script.only_reads:
            raise RedisError(NO_MEMORY)
        api = self._apis.get(lua) or self._api(lua)
        self._running, self._has_written = script, False
        try:
            said = script.run(lua.table_from(keys), lua.table_from(arguments), api, _cjson(lua))
            answer = _from_lua(said, script.spread)
        except LuaError as error:
            raise RedisError(f"ERR {error}") from error
        finally:
            self._running, self._has_written = None, False
        self._ran(text, keys, arguments, answer)
        return answer

    def _api(self, lua: Any) -> Any:
        api = lua.table_from({b"call": functools.partial(self._call, lua), b"pcall": functools.partial(self._try, lua)})
        api[b"sha1hex"] = _sha1
        api[b"acl_check_cmd"] = lambda *_: True
        self._apis[lua] = api
        return api

    def _call(self, lua: Any, *words: Any) -> Any:
        return _to_lua(lua, self._command(*[word if type(word) is bytes else _text(word) for word in words]))

    def _try(self, lua: Any, *words: Any) -> Any:
        try:
            return self._call(lua, *words)
        except RedisError as error:
            return lua.table_from({b"err": str(error).encode()})


# -- Lua -------------------------------------------------------------------------------------------------

SPREAD_MAX = 1000
"""Members of a table that are asked for at once: a call of Lua has room for some thousand values."""
SPREAD = b"""
return function(table, first, last)
    local stop = first
    while stop <= last and table[stop] ~= nil do stop = stop + 1 end
    return table.ok, table.err, unpack(table, first, stop - 1)
end
"""
"""A table as what a server looks for in it, all in one call: a question for each member would cost more than the script."""


class Script(NamedTuple):
    lua: Any
    run: Any
    spread: Any
    says_what: bool
    """It begins with a line that does."""
    only_reads: bool


@functools.cache
def _compiled(text: bytes, edits: tuple[tuple[str, str], ...]) -> Script:
    for right, wrong in edits:
        text = text.replace(right.encode(), wrong.encode())
    first, _, rest = text.partition(b"\n")
    says_what = first.startswith(b"#!lua")
    lua = LuaRuntime(encoding=None, unpack_returned_tuples=False)
    run = lua.execute(b"return function(KEYS, ARGV, redis, cjson)\n" + (rest if says_what else text) + b"\nend")
    return Script(lua, run, lua.execute(SPREAD), says_what, says_what and b"no-writes" in first)


@functools.cache
def _cjson(lua: Any) -> Any:
    def encode(table: Any) -> bytes:
        return json.dumps([v.decode() if isinstance(v, bytes) else v for v in table.values()]).encode()

    def decode(text: bytes) -> Any:
        return lua.table_from([v.encode() if isinstance(v, str) else v for v in json.loads(text)])

    return lua.table_from({b"encode": encode, b"decode": decode})


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text).hexdigest().encode()


def _text(word: Any) -> bytes:
    return word if isinstance(word, bytes) else f"{word:.17g}".encode()


@functools.cache
def _verb(name: bytes) -> tuple[str, str]:
    word = name.decode()
    return word, f"do_{word.lower()}"


# In what follows plain bytes, the commonest by far, are told apart first and by their exact type: the kinds of replies that
# are made of bytes are classes of their own.


def _to_lua(lua: Any, reply: Any) -> Any:
    """As a script is told: in version 2 of the protocol."""
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    if kind is list:
        return lua.table_from([each if type(each) is bytes else _to_lua(lua, each) for each in reply])
    match reply:
        case None:
            return False
        case Status():
            return lua.table_from({b"ok": bytes(reply)})
        case float():
            return _number(reply)
        case dict():
            return _to_lua(lua, [*itertools.chain.from_iterable(reply.items())])
        case Pairs():
            return _to_lua(lua, [*itertools.chain.from_iterable(reply)])
        case list():
            return _to_lua(lua, [*reply])
    return reply


def _from_lua(answer: Any, spread: Any) -> Any:
    """As a server turns what a script returns into a reply."""
    if answer is None or answer is False:
        return None
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, int | float):  # true is 1
        return int(answer)
    ok, error, *members = spread(answer, 1, SPREAD_MAX)
    if ok is not None:
        return Status(ok)
    if error is not None:
        raise RedisError(error.decode())
    more = members
    while len(more) == SPREAD_MAX:
        _, _, *more = spread(answer, len(members) + 1, len(members) + SPREAD_MAX)
        members += more
    return [member if type(member) is bytes else _from_lua(member, spread) for member in members]


# -- bytes -----------------------------------------------------------------------------------------------


class _Push(list[Any]):
    """A message that answers nothing."""


class Text(str):
    """A reply for people to read."""

    __slots__ = ()


class Encoded(bytes):
    """A reply as it is sent."""


def commands_of(request: bytes) -> Iterator[list[bytes]]:
    # Straight on, without a function for a number: a batch has thousands of words, and a test run a million.
    at, size = 0, len(request)
    while at < size:
        end = request.index(b"\r\n", at)
        count, at = int(request[at + 1 : end]), end + 2
        words = []
        for _ in range(count):
            first = request.index(b"\r\n", at) + 2
            stop = first + int(request[at + 1 : first - 2])
            words.append(request[first:stop])
            at = stop + 2
        yield words


def _number(score: float) -> bytes:
    if score.is_integer() and abs(score) < 2**53:
        return str(int(score)).encode()
    shortest = repr(score)
    _, _, fraction = shortest.partition(".")
    if len(fraction) < 7 or abs(score) < 1e4 or "e" in shortest:
        return shortest.encode()
    # As the server writes what has so many places.
    whole, digits = shortest.split(".")
    first = 2 if whole.startswith("-") else 1
    return f"{whole[:first]}.{whole[first:]}{digits}e+{len(whole) - first}".encode()


def _encode(reply: Any) -> bytes:
    """In version 3 of the protocol."""
    if type(reply) is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, list):
        kind = b">" if type(reply) is _Push else b"*"
        return b"%b%d\r\n%b" % (kind, len(reply), b"".join(map(_encode, reply)))
    match reply:
        case Encoded():
            return bytes(reply)
        case Status():
            return b"+%b\r\n" % reply
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % reply
        case float():
            return b",%b\r\n" % _number(reply)
        case Text():
            return b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply.encode())
        case dict():
            return b"%%%d\r\n%b" % (len(reply), b"".join(map(_encode, itertools.chain.from_iterable(reply.items()))))
    raise TypeError(f"not a reply: {reply!r}")
