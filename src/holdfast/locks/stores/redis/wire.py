"""How we speak to Redis: addresses, requests, replies. Pure: no sockets, so that the asyncio
link and the blocking one share every byte of it."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.locks.port import FENCES_PER_GRANT_MAX, Busy, Grant, Standing, require_token
from holdfast.locks.runtime import Runtime
from holdfast.locks.stores import shown

SCRIPT = Path(__file__).with_name("locks.lua").read_text(encoding="utf-8")
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()  # noqa: S324  (the name EVALSHA knows it by)
#: 100 items keep the server busy for about half a millisecond; more would be felt by others.
ITEMS_PER_RUN_MAX = 100
PORT = 6379
SENTINEL_PORT = 26379
PORT_MAX = 65535
#: What is said to remain of a foreign lock that never expires.
ENDLESS_MS = 2**31 - 1

#: bytes, int, None, a list of replies, a `Push` or a `ReplyError`.
Reply = Any


class ReplyError(Exception):
    """An error reply. `code` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Push(list[Reply]):
    """A message that answers no request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where one server is, and who we are to it."""

    host: str
    port: int
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def greeting(self) -> list[tuple[str, ...]]:
        """The commands that begin a connection. RESP3, so that wakes and replies share it."""
        hello: tuple[str, ...] = ("HELLO", "3")
        if self.password:
            hello += ("AUTH", self.username or "default", self.password)
        commands = [(*hello, "SETNAME", "holdfast")]
        if self.db:
            commands.append(("SELECT", str(self.db)))
        return commands


class Target(NamedTuple):
    """What a URL names: one server, the sentinels of a service, or seeds of a cluster."""

    kind: str
    addresses: tuple[Address, ...]
    service: str = ""
    #: The data server's address but for host and port, where `addresses` are sentinels.
    account: Address | None = None


def parse_url(url: str) -> Target:
    """Raises `ValueError` for what we do not understand, never with the password in it."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = dict(parse_qsl(parts.query))
    scheme, _, kind = parts.scheme.partition("+")
    kind = "unix" if scheme == "unix" else kind or "single"
    words = [] if kind == "unix" else [word for word in parts.path.split("/") if word]
    service = words.pop(0) if kind == "sentinel" and words else ""
    database = words[0] if words else options.pop("db", "0")
    if not database.isdigit() or len(words) > 1 or (kind == "cluster" and database != "0"):
        raise ValueError(f"{scheme} URL: {parts.path!r} does not name a database number")
    account = Address(
        host="",
        port=PORT,
        path=unquote(parts.path) if kind == "unix" else "",
        db=int(database),
        username=unquote(username) or options.pop("username", ""),
        password=unquote(password) or options.pop("password", ""),
        tls=_tls(options) if scheme in ("rediss", "valkeys") else None,
    )
    sentinel_password = options.pop("sentinel_password", "") if kind == "sentinel" else ""
    options.pop("namespace", None)  # where the control plane keeps its keys; locks have a prefix of their own
    if options:
        raise ValueError(f"{scheme} URL: no such option: {', '.join(sorted(options))}")
    if kind == "unix":
        return Target("single", (account,))
    if kind == "sentinel":
        if not service:
            raise ValueError("sentinel URL: name the service: redis+sentinel://host:26379/service")
        guard = replace(account, db=0, username="", password=sentinel_password)
        return Target(kind, tuple(_hosts(hosts, guard, SENTINEL_PORT)), service, account)
    return Target(kind, tuple(_hosts(hosts, account, PORT)))


def _hosts(text: str, account: Address, port: int) -> Iterator[Address]:
    for place in text.split(","):
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::(\d+))?", place)
        if found is None:
            raise ValueError(f"not a host and port: {place!r}")
        number = int(found[2] or port)
        if number > PORT_MAX:
            raise ValueError(f"not a port: {number}")
        yield replace(account, host=found[1].strip("[]") or "127.0.0.1", port=number)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    """redis-py's option names, so that a URL can be carried over."""
    authority = options.pop("ssl_ca_certs", None)
    certificate, key = options.pop("ssl_certfile", None), options.pop("ssl_keyfile", None)
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as why:
        files = "ssl_ca_certs, ssl_certfile and ssl_keyfile"
        raise ValueError(f"{files} must be readable PEM files: {why.strerror or why}") from None
    requirement = options.pop("ssl_cert_reqs", "required")
    if requirement not in ("required", "none"):
        raise ValueError(f"ssl_cert_reqs must be 'required' or 'none', not {requirement!r}")
    if requirement == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Caller:
    """Who we are, as the script and the errors name it."""

    def __init__(self, url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> None:
        self.subject = shown(url)
        self.prefix = prefix
        self.runtime = runtime
        self.timeout_s = timeout_s
        self.holder = " ".join(holder.split())  # one line: answers are separated by line ends
        self.channel = f"{prefix}wake:{runtime.token()[:16]}"
        self.encoded = bulk(self.holder) + bulk(self.channel)
        self.names_encoded = "".join(map(bulk, self.names()))

    def names(self, tag: str = "") -> tuple[str, str]:
        """The keys of the fence and of the history. A cluster has them once per slot."""
        return f"{self.prefix}fence{tag}", f"{self.prefix}history{tag}"


def in_parts(indices: Sequence[int]) -> list[Sequence[int]]:
    return [indices[i : i + ITEMS_PER_RUN_MAX] for i in range(0, len(indices), ITEMS_PER_RUN_MAX)]


def bulk(text: str) -> str:
    # Lone surrogates pass: a bad name must not break the batch it shares with others.
    length = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return f"${length}\r\n{text}\r\n"


def bulks(texts: Sequence[str]) -> str:
    if "".join(texts).isascii():  # asked once for all: a hundred renewals are a hundred texts
        return "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])
    return "".join(map(bulk, texts))


def command(*words: str) -> bytes:
    return f"*{len(words)}\r\n{bulks(words)}".encode("utf-8", "surrogatepass")


_EVALSHA = bulk("EVALSHA") + bulk(SCRIPT_SHA)
_EVAL = bulk("EVAL") + bulk(SCRIPT)


def script_run(
    names: str, keys: list[str], caller: str, items: list[str], *, further: Sequence[str] = (), load: bool = False
) -> bytes:
    """One run of the script. `names` and `caller` are two bulks each (see locks.lua), `further` the keys that a cluster
    is told of; `load` sends the script itself, for a server that has forgotten it."""
    if further or load:
        head = _head(len(keys), _EVAL if load else _EVALSHA, further=len(further))
        return f"{head}{names}{bulks(keys)}{bulks(further)}{caller}{bulks(items)}".encode("utf-8", "surrogatepass")
    return f"{_heads[len(keys)]}{names}{bulks(keys)}{caller}{bulks(items)}".encode("utf-8", "surrogatepass")


def _head(n: int, script: str, *, further: int = 0) -> str:
    return f"*{7 + 2 * n + further}\r\n{script}{bulk(str(n + 2 + further))}"


_heads = [_head(n, _EVALSHA) for n in range(ITEMS_PER_RUN_MAX + 1)]


def acquire_item(token: str, ttl_ms: int, queue_ms: int, fences: int) -> str:
    if not token:  # here as well, because a call for each item is felt
        require_token(token)
    return _terms(ttl_ms, queue_ms, fences) + token


@lru_cache
def _terms(ttl_ms: int, queue_ms: int, fences: int) -> str:
    """What an acquire asks for: the same for all of a class, so it is checked and written once."""
    # Checked here, because one bad item would fail the run that it shares with others.
    if ttl_ms < 1 or queue_ms < 0 or not 1 <= fences <= FENCES_PER_GRANT_MAX:
        raise ValueError(f"ttl_ms {ttl_ms}, queue_ms {queue_ms} or fences {fences} is out of range")
    return f"A {ttl_ms} {queue_ms} {fences} "


def release_item(token: str) -> str:
    if not token:
        require_token(token)
    return f"R {token}"


_LINE_END = b"\r\n"
_BULK = ord("$")


class _Whole(NamedTuple):
    """A reply of several, which follow one by one."""

    members: list[Reply]
    size: int


class Parser:
    """Bytes in, replies out, in order. Raises `ValueError` for bytes that are not RESP.

    What it has read it does not look at again: a reply of a hundred megabytes comes in a thousand pieces.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._lacking = 0  # so many bytes more, at least, until the rest can be read
        self._wholes: list[_Whole] = []  # that are not complete; outermost first

    def feed(self, received: bytes) -> list[Reply]:
        if self._rest:
            self._rest.append(received)
            self._lacking -= len(received)
            if self._lacking > 0:
                return []
            received = b"".join(self._rest)
            self._rest = []
        replies: list[Reply] = []
        wholes = self._wholes
        start, end = 0, len(received)
        while start < end:
            line = received.find(_LINE_END, start)
            if received[start] == _BULK and line > 0:  # most of what comes: not worth a call for each
                first = line + 2
                last = first + int(received[start + 1 : line])
                stop = last + 2
                reply: Any = received[first:last]
            else:
                reply, stop = _parse(received, start, line)
            if stop > end:
                self._rest, self._lacking = [received[start:]], stop - end
                break
            start = stop
            if reply.__class__ is _Whole:
                if reply.size > 0:
                    wholes.append(reply)
                    continue
                reply = reply.members
            # With a member its whole may be complete, and with that one the whole that it is of.
            while wholes:
                members, size = wholes[-1]
                members.append(reply)
                if len(members) < size:
                    break
                wholes.pop()
                reply = members
            else:
                replies.append(reply)
        return replies


def _parse(received: bytes, start: int, end: int) -> tuple[Reply, int]:
    """The reply that begins at `start`, whose line ends at `end`, and where the next one begins. That is beyond the end
    if it is not complete: as far as is known by then."""
    if end < 0:
        return None, len(received) + 1
    kind, head = received[start : start + 1], received[start + 1 : end]
    if kind == b"=":
        stop = end + 2 + int(head)
        return received[end + 6 : stop], stop + 2  # it begins with what kind of text it is
    if kind == b":":
        return int(head), end + 2
    if kind == b"-":
        return ReplyError(head.decode("utf-8", "replace")), end + 2
    if kind in b"+,#(":
        return head, end + 2
    if kind == b"_":
        return None, end + 2
    if kind not in b"*>~%":
        raise ValueError(f"not a RESP reply: it begins with {kind!r}")
    return _Whole(Push() if kind == b">" else [], int(head) * (2 if kind == b"%" else 1)), end + 2


def lines_of(reply: Reply) -> list[str]:
    """The answers of a script run, one per item."""
    assert isinstance(reply, bytes), reply
    return reply.decode("utf-8", "replace").split("\n")


_STANDINGS = {"O": Standing.OWNED, "T": Standing.TAKEN, "N": Standing.GONE}


def decoded(line: str) -> Grant | Busy | bool:
    """The answer to an acquire or a release; not for lines that begin with E."""
    if line[0] == "G":
        return tuple.__new__(Grant, (int(line[1:]),))  # in half the time of its own constructor
    if line[0] == "B":
        remaining, _, holder = line[1:].partition(" ")
        return Busy(holder, int(remaining) if remaining != "-1" else ENDLESS_MS)
    return line == "1"


def standings(lines: Iterable[str]) -> list[Standing]:
    return [_STANDINGS[line] for line in lines]
