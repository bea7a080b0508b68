"""Faults on the way between the library and its store.

`Network` injects them at the `LockStore` port, one call at a time, and records what the store
really did. `Proxy`, which the drills use as well, does it to the bytes of a real server's connections.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from holdfast.locks import Locks, StoreRefused, SyncLocks, Unavailable
from holdfast.locks.port import (
    BlockingStore,
    Busy,
    Grant,
    Holder,
    LockStore,
    Ownership,
    Renewal,
    Standing,
    WakeCallback,
)
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import blocking_store, open_store
from holdfast.ops.proxy import Proxy
from locks.invariants import Call, History

__all__ = ["Fault", "FaultyStore", "Network", "Proxy", "Rule"]

if TYPE_CHECKING:
    from typing import Self

    from harness import Backend

    from holdfast.locks.runtime import Runtime

T = TypeVar("T")


class Fault(Enum):
    FAIL = "fail"
    """Not sent, and known not to be."""
    REFUSE = "refuse"
    """Answered: not while the disk is full."""
    LOSE_REQUEST = "lose the request"
    """Never arrives; the caller cannot know."""
    LOSE_REPLY = "lose the reply"
    """Applied; the caller cannot know."""
    HANG = "hang"
    """Never arrives, and no answer ever comes."""
    HANG_AFTER = "hang after applying"
    """Applied, and no answer ever comes."""
    CRASH = "crash"
    """The driver has a bug: an error that no contract mentions."""


@dataclass
class Rule:
    verb: str
    fault: Fault | None
    times: int
    request_s: float = 0.0
    reply_s: float = 0.0
    #: Whose calls: "A" or "A.keeper"; empty for everybody's.
    who: str = ""


@dataclass
class Network:
    """One store, reached over links that can be made to fail."""

    store: LockStore
    runtime: Runtime
    history: History = field(default_factory=History)
    rules: list[Rule] = field(default_factory=list)
    #: Requests that are still travelling, though their senders may have given up; and each link's last.
    packets: set[asyncio.Task[Any]] = field(default_factory=set)
    last_packet: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    @classmethod
    async def over(cls, url: str, runtime: Runtime, **options: Any) -> Self:
        store = open_store(url, holder="network", prefix="holdfast:", runtime=runtime, **options)
        await store.open()
        return cls(store, runtime)

    def fault(self, verb: str, fault: Fault | None, *, times: int = 1_000_000, who: str = "", **delays: float) -> Rule:
        """From now on, `times` calls of `verb` meet this fault or these delays (`request_s`, `reply_s`)."""
        rule = Rule(verb, fault, times, who=who, **delays)
        self.rules.append(rule)
        return rule

    def heal(self) -> None:
        self.rules.clear()

    def link(self, who: str) -> FaultyStore:
        return FaultyStore(self.store.sibling(), self, who)

    def locks(self, who: str = "A", **options: Any) -> Locks:
        """A `Locks` whose every store call crosses this network as `who`; its keeper's as `who.keeper`."""
        with patch("holdfast.locks.locks.open_store", lambda *_, **__: self.link(who)):
            return Locks("sqlite:///:memory:", holder=who, runtime=self.runtime, **options)

    @classmethod
    def of_threads(cls, backend: Backend) -> Self:
        """For `sync_locks`, on any store; there is nothing to close."""
        return cls(backend.open(), SYSTEM)

    def sync_locks(self, backend: Backend, **options: Any) -> SyncLocks:
        """A `SyncLocks` whose every store call crosses this network: in the keeper's loop, or by a thread of its own."""

        def connect(*arguments: Any, **settings: Any) -> BlockingStore | None:
            native = blocking_store(*arguments, **settings)
            return None if native is None else FaultyBlockingStore(native, self)

        with (
            patch("holdfast.locks.sync.open_store", lambda *_, **__: self.link("A")),
            patch("holdfast.locks.sync.blocking_store", connect),
        ):
            return SyncLocks(backend.url, prefix=backend.prefix, **options)

    async def close(self) -> None:
        for packet in self.packets:
            packet.cancel()
        await asyncio.gather(*self.packets, return_exceptions=True)
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def find_rule(self, verb: str, who: str) -> Rule | None:
        for rule in self.rules:
            if rule.times > 0 and rule.verb in (verb, "*") and rule.who in ("", who):
                rule.times -= 1
                return rule
        return None

    async def carry(self, verb: str, who: str, call: Callable[[], Awaitable[Any]], **told: Any) -> Any:
        """One call over the network. What the store does is recorded when it does it."""
        rule = self.find_rule(verb, who) or Rule(verb, None, 1)
        sent = Call(verb=verb, who=who, sent_at=self.runtime.now(), **told)
        self._send(sent, rule)
        if rule.fault is Fault.HANG:
            await asyncio.get_running_loop().create_future()
        if rule.request_s or who in self.last_packet:
            answer = await self._travel(sent, call, rule.request_s)
        else:
            answer = await self._apply(sent, call)
        if rule.reply_s:
            await asyncio.sleep(rule.reply_s)
        if rule.fault is Fault.LOSE_REPLY:
            raise Unavailable("network", "injected: reply lost", applied=None)
        if rule.fault is Fault.HANG_AFTER:
            await asyncio.get_running_loop().create_future()
        return answer

    def carry_blocking(self, verb: str, call: Callable[[], T], **told: Any) -> T:
        """The same for a thread that waits."""
        rule = self.find_rule(verb, "A.thread") or Rule(verb, None, 1)
        sent = Call(verb=verb, who="A.thread", sent_at=self.runtime.now(), **told)
        self._send(sent, rule)
        answer = call()
        self.history.record(sent, answer, at=self.runtime.now())
        if rule.fault is Fault.LOSE_REPLY:
            raise Unavailable("network", "injected: reply lost", applied=None)
        return answer

    def _send(self, sent: Call, rule: Rule) -> None:
        """Raise what keeps a request from arriving."""
        match rule.fault:
            case Fault.REFUSE:
                raise StoreRefused("network", "injected: the disk is full", next_step="Free some space", full=True)
            case Fault.CRASH:
                raise RuntimeError("injected: a bug in the driver")
        self.history.attempts.append((sent.sent_at, sent.verb, sent.who))
        if rule.fault is Fault.FAIL:
            raise Unavailable("network", "injected: not sent", applied=False)
        if rule.fault is Fault.LOSE_REQUEST:
            raise Unavailable("network", "injected: request lost", applied=None)

    async def _travel(self, sent: Call, call: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        before = self.last_packet.get(sent.who)

        async def arrive() -> Any:
            await asyncio.sleep(seconds)
            if before is not None:
                await asyncio.wait([before])
            return await self._apply(sent, call)

        # A packet does not turn back because its sender was cancelled, nor overtake on its own link.
        packet = self.last_packet[sent.who] = asyncio.create_task(arrive())
        self.packets.add(packet)
        packet.add_done_callback(functools.partial(self._arrived, sent.who))
        return await asyncio.shield(packet)

    def _arrived(self, who: str, packet: asyncio.Task[Any]) -> None:
        self.packets.discard(packet)
        if self.last_packet.get(who) is packet:
            del self.last_packet[who]

    async def _apply(self, sent: Call, call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        self.history.record(sent, answer, at=self.runtime.now())
        return answer


class FaultyStore:
    """A `LockStore` on the far side of a `Network`."""

    def __init__(self, inner: LockStore, network: Network, who: str) -> None:
        self._inner = inner
        self._network = network
        self._who = who

    async def open(self) -> None:
        if self._network.find_rule("open", self._who):
            raise Unavailable("network", "injected: cannot connect", applied=False)
        await self._inner.open()

    async def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        call = functools.partial(self._inner.acquire, key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences)
        reply: Grant | Busy = await self._network.carry(
            "acquire", self._who, call, key=key, token=token, ttl_ms=ttl_ms, queue_ms=queue_ms
        )
        return reply

    async def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        call = functools.partial(self._inner.renew, renewals)
        standings: list[Standing] = await self._network.carry("renew", self._who, call, renewals=tuple(renewals))
        return standings

    async def release(self, key: str, token: str) -> bool:
        call = functools.partial(self._inner.release, key, token)
        done: bool = await self._network.carry("release", self._who, call, key=key, token=token)
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
        self._inner.on_wake(callback)

    def sibling(self) -> LockStore:
        return FaultyStore(self._inner.sibling(), self._network, f"{self._who}.keeper")

    async def close(self) -> None:
        await self._inner.close()


class FaultyBlockingStore:
    """A `BlockingStore` on the far side of a `Network`."""

    def __init__(self, inner: BlockingStore, network: Network) -> None:
        self._inner = inner
        self._network = network

    def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        call = functools.partial(self._inner.acquire, key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences)
        return self._network.carry_blocking("acquire", call, key=key, token=token, ttl_ms=ttl_ms, queue_ms=queue_ms)

    def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        call = functools.partial(self._inner.renew, renewals)
        return self._network.carry_blocking("renew", call, renewals=tuple(renewals))

    def release(self, key: str, token: str) -> bool:
        call = functools.partial(self._inner.release, key, token)
        return self._network.carry_blocking("release", call, key=key, token=token)

    def close(self) -> None:
        self._inner.close()
