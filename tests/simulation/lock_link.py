"""A lock store on the other side of the network, and a witness who sees all that it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from locks.invariants import Call
from locks.reference import Reference

from holdfast.locks import Unavailable
from holdfast.locks.lease import Lease
from holdfast.locks.port import Busy, Grant, Holder, LockStore, Ownership, Renewal, Standing, WakeCallback
from simulation import databases
from simulation.network import Network, Unanswered
from simulation.stand_ins import standing_in
from simulation.world import Process, World


def let_go_of(store: Any) -> None:
    """Close a store's database in memory, whoever still uses it: the dead never say goodbye."""
    store._shared.writer.let_go()


class Witness:
    """What every story with locks in it has: a network, a store of locks, and promises that are watched."""

    store: LockStore

    def __init__(self, seed: int, *, without: frozenset[int]) -> None:
        self.world = World(seed)
        self.network = Network(self.world, without=without)
        self.server = self.world.process("store")
        self.reference = Reference()
        self.leases: dict[str, Lease] = {}
        self.trusted: dict[str, float] = {}
        """When the last request of a token that succeeded was really sent."""
        self.granted: dict[str, range] = {}
        """The fences of a token's grant."""
        self.reached: Counter[str] = Counter()
        """What happened in this story, for those who must know that it was not all for nothing."""
        self.broken: list[str] = []

    def open(self, store: Any) -> None:
        """Open a store of the server's, in a database of its own."""
        with standing_in(databases.STAND_INS):
            error = self.network.happen(self.server, store.open)
        assert error is None, error

    def saw(self, sent: Call, answer: Any) -> None:
        self.world.tell("store", f"{sent.verb} for {sent.who}: {answer}")
        try:
            self.reference.check(sent, answer, at=self.world.clock_s)
        except AssertionError as error:
            self.broke(str(error))

    def succeeded(self, token: str, sent_at: float) -> None:
        self.trusted[token] = max(sent_at, self.trusted.get(token, 0.0))

    def check_release(self, token: str) -> None:
        """P3: what was abandoned is not released."""
        lease = self.leases.get(token)
        if lease is not None and lease.lost is not None:
            self.broke(f"P3: {lease.key} is released after it was lost ({lease.lost})")

    def broke(self, promise: str) -> None:
        """Kept until the end: it may have happened in the middle of somebody's step."""
        self.world.tell("BROKEN", promise)
        self.broken.append(promise)

    def check_watched(self) -> None:
        assert not self.broken, self.broken[0]
        assert not self.world.failures, f"errors that nobody caught: {self.world.failures}"


class Markers:
    """An `Observer` that counts what the library says has happened to it."""

    def __init__(self, reached: Counter[str]) -> None:
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        def mark(*_: object, **values: Any) -> None:
            self._reached[f"{name}:{values['reason']}" if "reason" in values else name] += 1

        setattr(self, name, mark)  # asked for once
        return mark


class LinkedStore:
    def __init__(self, story: Witness, process: Process, who: str) -> None:
        self._story = story
        self._process = process
        self._who = who
        self._store = story.store
        self._inner = story.store.sibling()
        self._callback: WakeCallback | None = None

    def _there(self) -> LockStore:
        """The store that is in charge now."""
        if self._store is not self._story.store:
            self._store = self._story.store
            self._inner = self._store.sibling()
            self._connect()
        return self._inner

    def _connect(self) -> None:
        self._story.network.happen(self._story.server, self._inner.open)
        if self._callback is not None:
            push, callback = self._story.network.push, self._callback
            self._inner.on_wake(lambda key, token: push(self._process, "a wake-up", callback, key, token))

    async def open(self) -> None:
        self._connect()

    async def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        sent_at = self._process.world.clock_s
        reply: Grant | Busy = await self._call(
            "acquire",
            lambda store: store.acquire(key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences),
            key=key,
            token=token,
            ttl_ms=ttl_ms,
            queue_ms=queue_ms,
        )
        if isinstance(reply, Grant):
            self._story.succeeded(token, sent_at)
            self._story.granted[token] = range(reply.fence, reply.fence + fences)
        return reply

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        sent_at = self._process.world.clock_s
        standings: list[Standing] = await self._call(
            "renew", lambda store: store.renew(renewals), renewals=tuple(renewals)
        )
        for renewal, standing in zip(renewals, standings, strict=True):
            if standing is Standing.OWNED:
                self._story.succeeded(renewal.token, sent_at)
        return standings

    async def release(self, key: str, token: str) -> bool:
        self._story.check_release(token)
        done: bool = await self._call("release", lambda store: store.release(key, token), key=key, token=token)
        return done

    async def evict(self, key: str, fence: int, *, reason: str) -> bool:
        return await self._inner.evict(key, fence, reason=reason)

    async def find_holder(self, key: str) -> Holder | None:
        return await self._inner.find_holder(key)

    async def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Holder]:
        return await self._inner.list_holders(prefix, after=after, limit=limit)

    async def list_history(self, key: str, *, limit: int = 100) -> list[Ownership]:
        return await self._inner.list_history(key, limit=limit)

    def on_wake(self, callback: WakeCallback) -> None:
        self._callback = callback

    def sibling(self) -> LockStore:
        return LinkedStore(self._story, self._process, f"{self._who}.keeper")

    async def close(self) -> None:
        await self._inner.close()

    async def _call(self, verb: str, ask: Callable[[LockStore], Awaitable[Any]], **told: Any) -> Any:
        sent = Call(verb=verb, who=self._who, sent_at=self._process.world.clock_s, **told)

        async def happen() -> Any:
            answer = await ask(self._there())
            self._story.saw(sent, answer)
            return answer

        try:
            return await self._story.network.call(self._process, self._story.server, verb, happen)
        except Unanswered as error:
            raise Unavailable("store", "no answer", applied=error.applied) from error
