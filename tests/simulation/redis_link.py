"""Connections to a Redis server in memory, as streams: in order, and broken when a part of them is lost.

The product's own client speaks over them. Faults befall what is written: a piece that is lost takes along all
that comes after it on this connection, until somebody gives it up. What was late when the client gave it up may still
arrive: a proxy has it, or the server had it in hand. Nothing arrives twice but what the client itself repeats.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.locks.port import Busy, Grant, Holder, LockStore, Ownership, Renewal, Standing, WakeCallback
from simulation.network import USUAL

if TYPE_CHECKING:
    from simulation.redis_witness import RedisWitness
    from simulation.world import Lane


class NoVigil:
    """`holdfast.locks.stores.redis.vigil.Vigil`, which stays awake for a moment; here moments do not pass so."""

    def __init__(self, *_: Any) -> None: ...

    def begins(self) -> bool:
        return False


class Socket:
    """What a client wants to know of its socket."""

    def setsockopt(self, *_: Any) -> None: ...

    def fileno(self) -> int:
        return 0


class Stream:
    """A client's end of a connection: an `asyncio.Transport`, as far as it is used."""

    def __init__(self, story: RedisWitness, lane: Lane, protocol: Any) -> None:
        self._story = story
        self._world = story.world
        self._lane = lane
        self._protocol = protocol
        self._server = story.redis
        self._there_by = self._back_by = 0.0
        """Nothing overtakes what was sent before."""
        self._cut_there = self._cut_back = False
        self._is_given_up = self._is_over = False
        story.streams.append(self)
        protocol.connection_made(self)

    def get_extra_info(self, _: str) -> Socket:
        return Socket()

    def write(self, request: bytes) -> None:
        story, network = self._story, self._story.network
        if self._is_given_up or self._world.over:
            return
        fate = network.draw("a request")
        self._cut_there |= fate.request_s is None or network.is_cut(self._lane.process, story.server)
        if self._cut_there:
            return
        if self._breaks():
            if self._world.chance.random() < 0.5:  # else before it arrives
                self._arrive(request, None)
            self.end()
            return
        late_s = fate.stall_s + (fate.request_s or 0.0)
        if fate is USUAL and self._there_by <= self._world.clock_s and self._is_express():
            self._arrive(request, fate.reply_s)
            return
        self._there_by = max(self._there_by, self._world.clock_s + self._latency() + late_s)
        self._world.at(self._there_by, lambda: self._arrive(request, fate.reply_s))

    def _is_express(self) -> bool:
        return not self._story.far_s and self._story.network.is_express()

    def _latency(self) -> float:
        far_s = self._story.far_s
        return self._story.network.latency() + (far_s * self._world.chance.random() if far_s else 0.0)

    def _breaks(self) -> bool:
        """Both sides are told: the one fault that a message by itself does not know. In the moods that repeat messages."""
        network, rate = self._story.network, self._story.network.mix.twice
        return rate > 0.0 and self._world.chance.random() < rate and network.inject("break a connection")

    def abort(self) -> None:
        """The client gives it up; what is on its way may still arrive."""
        if not self._is_given_up:
            self._is_given_up = True
            self._server.forget(self._hear)
            self._lane.call_soon(self._protocol.connection_lost, None)

    def end(self) -> None:
        """Both sides learn of it; what was on its way is lost."""
        self._is_over = True
        self.abort()

    def _arrive(self, request: bytes, reply_s: float | None) -> None:
        if self._is_over or self._world.over:
            return
        reply = self._server.feed(request, self._hear)
        if self._is_given_up:
            self._server.forget(self._hear)
            return
        self._cut_back |= reply_s is None
        self._send_back(reply, reply_s or 0.0)

    def _hear(self, message: bytes) -> None:
        fate = self._story.network.draw("a wake-up")
        self._cut_back |= fate.request_s is None
        self._send_back(message, fate.request_s or 0.0)

    def _send_back(self, reply: bytes, late_s: float) -> None:
        if self._cut_back:
            return
        now = self._world.clock_s
        if not late_s and self._back_by <= now and self._is_express():
            self._lane.call_soon(self._receive, reply)
            return
        self._back_by = max(self._back_by, now + self._latency() + late_s)
        self._world.at(self._back_by, lambda: self._lane.call_soon(self._receive, reply))

    def _receive(self, reply: bytes) -> None:
        if not self._is_given_up:
            self._protocol.data_received(reply)


class WatchedStore:
    """The real store of one client; what it was told is noted, for those who judge."""

    def __init__(self, story: RedisWitness, store: LockStore) -> None:
        self._story = story
        self._store = store

    async def open(self) -> None:
        await self._store.open()

    async def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        sent_at = self._story.world.clock_s
        reply = await self._store.acquire(key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences)
        if isinstance(reply, Grant):
            self._story.succeeded(token, sent_at)
            self._story.granted[token] = range(reply.fence, reply.fence + fences)
        return reply

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        sent_at = self._story.world.clock_s
        standings = await self._store.renew(renewals)
        for renewal, standing in zip(renewals, standings, strict=True):
            if standing is Standing.OWNED:
                self._story.succeeded(renewal.token, sent_at)
        return standings

    def release(self, key: str, token: str) -> Awaitable[bool]:
        self._story.check_release(token)
        return self._store.release(key, token)

    def evict(self, key: str, fence: int, *, reason: str) -> Awaitable[bool]:
        return self._store.evict(key, fence, reason=reason)

    def find_holder(self, key: str) -> Awaitable[Holder | None]:
        return self._store.find_holder(key)

    def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> Awaitable[list[Holder]]:
        return self._store.list_holders(prefix, after=after, limit=limit)

    def list_history(self, key: str, *, limit: int = 100) -> Awaitable[list[Ownership]]:
        return self._store.list_history(key, limit=limit)

    def on_wake(self, callback: WakeCallback) -> None:
        self._store.on_wake(callback)

    def sibling(self) -> LockStore:
        return WatchedStore(self._story, self._store.sibling())

    async def close(self) -> None:
        await self._store.close()


def dialling(story: RedisWitness) -> Callable[..., Awaitable[tuple[Stream, Any]]]:
    """`create_connection` of every loop in the story."""

    async def create_connection(lane: Lane, make: Callable[[], Any], *_: Any, **__: Any) -> tuple[Stream, Any]:
        if story.network.is_cut(lane.process, story.server) or story.redis.is_away:
            raise ConnectionRefusedError("nobody answers")
        protocol = make()
        return Stream(story, lane, protocol), protocol

    return create_connection
