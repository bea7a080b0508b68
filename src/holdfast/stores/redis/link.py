"""Connections of the control plane to Redis: over the wire client of the lock library, with its addresses and its errors.

A plane's keys are all in one hash slot, so it speaks to one server: the only one, the primary that sentinels name, or
the owner of the slot in a cluster. Nothing is ever sent twice by itself, but what only reads.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, Invalid, StoreUnavailable
from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.redis.cluster import owners_of
from holdfast.locks.stores.redis.connection import Connection, Run
from holdfast.locks.stores.redis.refusals import greeting_refusal, no_connection, refusal, unreachable
from holdfast.locks.stores.redis.sentinel import Sentinels
from holdfast.locks.stores.redis.wire import Address, Caller, Push, Reply, ReplyError, Target
from holdfast.stores.redis.commands import Word

ELSEWHERE = ("MOVED", "READONLY", "CLUSTERDOWN", "MASTERDOWN")
"""Answers of a server that is not, or no longer, the one to ask: the next connection looks for it."""


SHARED = "Another program uses this key: remove it, or give the plane another namespace with ?namespace=NAME"


class Script(NamedTuple):
    text: str
    sha: str


def script(file: str) -> Script:
    text = files("holdfast.stores.redis").joinpath(file).read_text(encoding="utf-8")
    return Script(text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324  (the name EVALSHA knows it by)


WRITE = script("write.lua")
SETTLE = script("settle.lua")
ADOPT = script("adopt.lua")
SNAPSHOT = script("snapshot.lua")
JOBS = script("jobs.lua")
EVENTS = script("events.lua")
READY = script("ready.lua")
MOVE = script("move.lua")
ARRIVE = script("arrive.lua")
ARRIVED = script("arrived.lua")
TURN = script("turn.lua")


def encoded(words: Sequence[Word]) -> bytes:
    # Thousands of words for a batch: a comprehension, and the commonest kinds first.
    values = [
        word.encode() if isinstance(word, str) else word if isinstance(word, bytes) else repr(word).encode()
        for word in words
    ]
    return b"*%d\r\n%b" % (len(values), b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values]))


class Line:
    """One connection, as it is asked."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self._connection = connection
        self._subject = subject

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        """All in one write; the answers in their order. Raises `Unavailable` or `StoreRefused`."""
        try:
            return await self._replies([encoded(words) for words in commands])
        except ReplyError as refused:
            raise self._refusal(refused) from None

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        rest = (len(keys), *keys, *arguments)
        try:
            try:
                [reply] = await self._replies([encoded(("EVALSHA", what.sha, *rest))])
            except ReplyError as refused:
                if refused.code != "NOSCRIPT":
                    raise
                # It did not run, so sending it again is safe.
                [reply] = await self._replies([encoded(("EVAL", what.text, *rest))])
        except ReplyError as refused:
            raise self._refusal(refused) from None
        return reply

    async def _replies(self, commands: Sequence[bytes]) -> list[Reply]:
        if self._connection.ended.done():
            raise Unavailable(self._subject, "connection lost", applied=False)
        return await asyncio.gather(*self._connection.ask_all(commands))

    def _refusal(self, refused: ReplyError) -> LockError:
        if refused.code in ELSEWHERE:
            self._connection.drop("this is not the server to ask any more")
        if refused.code == "WRONGTYPE":
            return StoreRefused(self._subject, str(refused), next_step=SHARED)
        return refusal(self._subject, _without_arguments(refused))


class PlaneLink:
    """The line to the plane's server, made when first used and again after a loss."""

    def __init__(
        self,
        target: Target,
        caller: Caller,
        *,
        slot: int,
        prepare: Callable[[Line], Awaitable[None]] | None = None,
        heard: Callable[[str], None] | None = None,
    ) -> None:
        """`prepare` asks what is to be asked first on every connection. `heard` is told what is said on the caller's channel,
        and '' whenever something may have been missed."""
        self.subject = caller.subject
        self.timeout_s = caller.timeout_s
        self.on_turned_away: Callable[[Run, ReplyError], None] | None = None
        self._target = target
        self._sentinels = Sentinels(target)
        self._caller = caller
        self._slot = slot
        self._prepare = prepare
        self._heard = heard
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        return await Line(await self.connected(), self.subject).ask(*commands)

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        return await Line(await self.connected(), self.subject).run(what, keys, arguments)

    async def close(self) -> None:
        self._is_open = False
        connection = self._connection
        if connection is not None:
            connection.drop("the store was closed")
            await connection.ended

    async def connected(self) -> Connection:
        if self._is_open and self._connection is not None:
            return self._connection
        # Whoever waits for others who try has spent that time: else they would try one after the other, each for as long.
        try:
            async with asyncio.timeout(self.timeout_s), self._connecting:
                if not self._is_open:
                    raise self._away("the store is not open")
                if self._connection is None:
                    await self._connect()
                assert self._connection is not None
                return self._connection
        except TimeoutError:
            raise no_connection(self.subject, self.timeout_s) from None

    # -- told by the connection --------------------------------------------------------------------

    def pushed(self, message: Push) -> None:
        if self._heard is None:
            return
        if message[0] == b"subscribe":
            self._heard("")
        elif message[0] == b"message":
            self._heard(message[2].decode())

    def lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None

    # -- connecting --------------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            connection = await self._greeted(await self._locate())
        except StoreRefused:
            raise
        except (OSError, LockError) as failed:
            raise unreachable(self.subject, failed) from None
        try:
            if self._prepare is not None:
                await self._prepare(Line(connection, self.subject))
            if self._heard is not None:
                await self._subscribed(connection)
        except BaseException:
            connection.drop("not used")
            raise
        if connection.ended.done():
            raise self._away("connection lost")
        self._connection = connection

    async def _subscribed(self, connection: Connection) -> None:
        try:
            await connection.subscribe()
        except ReplyError as refused:
            raise refusal(self.subject, str(refused)) from None

    async def _greeted(self, address: Address) -> Connection:
        connection = Connection(self, self._caller)
        loop = asyncio.get_running_loop()
        try:
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path)
            else:
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=address.tls)
            await asyncio.gather(*(connection.ask(*words) for words in address.greeting()))
        except BaseException as failed:
            connection.drop("not used")
            if isinstance(failed, ReplyError):
                raise greeting_refusal(self.subject, str(failed), address.password) from None
            raise
        return connection

    async def _locate(self) -> Address:
        if self._target.kind == "sentinel":
            return await self._sentinels.find_primary(self._caller.timeout_s)
        if self._target.kind == "cluster":
            return await self._find_owner()
        return self._target.addresses[0]

    async def _find_owner(self) -> Address:
        """Of the plane's slot. Asks one server after the other."""
        why: Exception = OSError("nobody serves the plane's slot")
        for seed in self._target.addresses:
            try:
                connection = await self._greeted(seed)
            except (OSError, LockError) as failed:
                why = failed
                continue
            try:
                owner = owners_of(await connection.ask("CLUSTER", "SLOTS"), (seed.host, seed.port)).get(self._slot)
            except (ReplyError, LockError) as failed:
                why = failed if isinstance(failed, LockError) else refusal(self.subject, str(failed))
                continue
            finally:
                connection.drop("not used")
            if owner is not None:
                return replace(seed, host=owner[0], port=owner[1])
        raise why

    def _away(self, detail: str) -> Unavailable:
        return Unavailable(self.subject, detail, applied=False)


def _without_arguments(reply: ReplyError) -> str:
    """A server that does not know a command repeats what it was asked."""
    return str(reply).partition(", with args beginning")[0]


def translated(failure: Exception, subject: str, *, applied: bool | None) -> HoldfastError:
    """The failure in the words of the port. `applied` is what is known if the answer got lost."""
    if isinstance(failure, HoldfastError):
        return failure
    if isinstance(failure, ValueError | OverflowError):
        # Not its text: it may quote the value.
        return Invalid(f"this cannot be stored: {type(failure).__name__}")
    if isinstance(failure, StoreRefused | Unavailable):
        _, _, detail = str(failure).partition(": ")
        known = False if isinstance(failure, StoreRefused) else failure.applied
        return StoreUnavailable(subject, detail, applied=applied if known is None else known)
    return StoreUnavailable(subject, type(failure).__name__, applied=applied)


class Asking:
    """Questions that change nothing: if the connection had died, they are asked once more, while there is time."""

    def __init__(self, link: PlaneLink) -> None:
        self._link = link

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        replies: list[Reply] = await self._again(partial(self._link.ask, *commands))
        return replies

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        return await self._again(partial(self._link.run, what, keys, arguments))

    async def change(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        """A script that writes by itself. It is not asked again: it may have been applied."""
        try:
            return await self._link.run(what, keys, arguments)
        except (LockError, ValueError) as failure:
            raise translated(failure, self._link.subject, applied=None) from None

    async def _again(self, question: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._link.timeout_s
        try:
            try:
                return await question()
            except Unavailable:
                if loop.time() >= deadline:
                    raise
                return await question()
        except (LockError, ValueError) as failure:
            raise translated(failure, self._link.subject, applied=False) from None
