"""Connections of the control plane to Redis: over the wire client of the lock library, with its addresses and its errors.

A plane's keys are all in one hash slot, so it speaks to one server: the only one, the primary that sentinels name, or
the owner of the slot in a cluster. Nothing is ever sent twice by itself, but what only reads, and what a server has not begun.

While a cluster moves the slot, some keys are here and some there. What is about one key goes on (`line`); what needs more of
them together waits until they are, and all writes do.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, Invalid, StoreUnavailable
from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.redis.cluster import ANSWER_SHARE, PAUSE_S, Place, owners_of
from holdfast.locks.stores.redis.connection import Connection, Run
from holdfast.locks.stores.redis.refusals import greeting_refusal, no_connection, refusal, unreachable
from holdfast.locks.stores.redis.sentinel import Sentinels
from holdfast.locks.stores.redis.wire import Address, Caller, Push, Reply, ReplyError, Target
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.line import Line, Script, TurnedAway

T = TypeVar("T")


def script(file: str, *before: str) -> Script:
    """`before`: what it needs, in files of their own."""
    folder = files("holdfast.stores.redis")
    first, *parts = (folder.joinpath(name).read_text(encoding="utf-8") for name in (file, *before))
    head, line_end, rest = first.partition("\n")
    text = "".join((head, line_end, *parts, rest))
    return Script(text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324  (the name EVALSHA knows it by)


WRITE = script("write.lua", "rights.lua")
SETTLE = script("settle.lua")
ADOPT = script("adopt.lua", "rights.lua")
SNAPSHOT = script("snapshot.lua")
JOBS = script("jobs.lua")
EVENTS = script("events.lua")
READY = script("ready.lua")
MOVE = script("move.lua")
ARRIVE = script("arrive.lua")
ARRIVED = script("arrived.lua")
RECORDS = script("records.lua")
NAMES = script("names.lua")
TURN = script("turn.lua")


class StillMoving(Unavailable):
    """It has been waited for long enough."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        detail = f"the cluster moves the slot of this plane, and has not done so within {timeout_s} s"
        super().__init__(subject, detail, applied=False)


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
        self._line: Line | None = None
        self._connecting = asyncio.Lock()
        self._named: Place | None = None
        """Where the slot has gone, by the word of who had it."""
        self._besides: dict[Place, Connection] = {}
        self._crossing = asyncio.Lock()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        return await self.served(lambda line: line.ask(*commands))

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        return await self.served(lambda line: line.run(what, keys, arguments))

    async def close(self) -> None:
        self._is_open = False
        connections = [*self._besides.values(), *([self._line.connection] if self._line else [])]
        for connection in connections:
            connection.drop("the store was closed")
        for connection in connections:
            await asyncio.shield(connection.ended)

    async def connected(self) -> Line:
        if self._is_open and self._line is not None:
            return self._line
        # Whoever waits for others who try has spent that time: else they would try one after the other, each for as long.
        try:
            async with asyncio.timeout(self.timeout_s), self._connecting:
                if not self._is_open:
                    raise self._away("the store is not open")
                if self._line is None:
                    await self._connect()
                assert self._line is not None
                return self._line
        except TimeoutError:
            raise no_connection(self.subject, self.timeout_s) from None

    async def served(self, question: Callable[[Line], Awaitable[T]]) -> T:
        """Asked again as long as the slot is on its way, within the time of one question: whoever turns it away has not begun it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (1 - ANSWER_SHARE) * self.timeout_s
        moves = 0
        while True:
            try:
                return await question(await self.connected())
            except TurnedAway as away:
                if self._target.kind != "cluster":
                    raise
                if away.to is not None:
                    self._named = away.to
                    moves += 1
                    if moves == 1:
                        continue  # else they do not agree yet whose it is
            pause = self._caller.runtime.jitter(PAUSE_S)
            if loop.time() + pause >= until:
                raise StillMoving(self.subject, self.timeout_s)
            await asyncio.sleep(pause)

    # -- told by the connection --------------------------------------------------------------------

    def pushed(self, message: Push) -> None:
        if self._heard is None:
            return
        if message[0] == b"subscribe":
            self._heard("")
        elif message[0] == b"message":
            self._heard(message[2].decode())

    def lost(self, connection: Connection) -> None:
        if self._line is not None and connection is self._line.connection:
            self._line = None
        self._besides = {place: each for place, each in self._besides.items() if each is not connection}

    # -- connecting --------------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            address = await self._locate()
            connection = await self._greeted(address)
        except StoreRefused:
            raise
        except (OSError, LockError) as failed:
            raise unreachable(self.subject, failed) from None
        line = Line(connection, self.subject, place=(address.host, address.port), beside=self._beside)
        try:
            if self._prepare is not None:
                await self._prepare(line)
            if self._heard is not None:
                await self._subscribed(connection)
        except BaseException:
            connection.drop("not used")
            raise
        if connection.ended.done():
            raise self._away("connection lost")
        if not self._is_open:
            connection.drop("the store was closed")
            raise self._away("the store was closed")
        self._line = line

    async def _beside(self, place: Place) -> Connection:
        """To a server that is about to get the slot. It is kept until then and longer: others may wait for their answers on it."""
        try:
            async with asyncio.timeout(self.timeout_s), self._crossing:
                if place not in self._besides:
                    connection = await self._greeted(self._server_at(place))
                    if not self._is_open:
                        connection.drop("the store was closed")
                        raise self._away("the store was closed")
                    self._besides[place] = connection
                return self._besides[place]
        except StoreRefused:
            raise
        except TimeoutError:
            raise no_connection(self.subject, self.timeout_s) from None
        except (OSError, LockError) as failed:
            raise unreachable(self.subject, failed) from None

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
            named, self._named = self._named, None
            return self._server_at(named) if named else await self._find_owner()
        return self._target.addresses[0]

    def _server_at(self, place: Place) -> Address:
        return replace(self._target.addresses[0], host=place[0], port=place[1])

    async def _find_owner(self) -> Address:
        """Of the plane's slot. Asks one server after the other."""
        why: Exception = OSError("nobody serves the plane's slot")
        share_s = self.timeout_s / (len(self._target.addresses) + 1)
        for seed in self._target.addresses:
            try:
                # One that is down must leave time for the others, and for the owner.
                async with asyncio.timeout(share_s):
                    owner = await self._owner_by(seed)
            except TimeoutError:
                why = TimeoutError(f"no answer of {seed.host}:{seed.port} in time")
            except (OSError, LockError) as failed:
                why = failed
            else:
                if owner is not None:
                    return self._server_at(owner)
        raise why

    async def _owner_by(self, seed: Address) -> Place | None:
        connection = await self._greeted(seed)
        try:
            return owners_of(await connection.ask("CLUSTER", "SLOTS"), (seed.host, seed.port)).get(self._slot)
        except ReplyError as refused:
            raise refusal(self.subject, str(refused)) from None
        finally:
            connection.drop("not used")

    def _away(self, detail: str) -> Unavailable:
        return Unavailable(self.subject, detail, applied=False)


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
            except StillMoving:
                raise
            except Unavailable:
                if loop.time() >= deadline:
                    raise
                return await question()
        except (LockError, ValueError) as failure:
            raise translated(failure, self._link.subject, applied=False) from None
