"""What a lock store must answer, in the plainest words: the contract of `holdfast.locks.port` as a program.

Fed with every request that a store has carried out, in the store's order, it says for each whether
the answer was right. It has no fences of its own: it learns each lease's fence from the first
answer that names it, and demands that a key's fences grow and that a lease keeps the one it has.

L1 fences grow · L2 only the owner releases and renews · L3 one holder at a time · L8 a repeat gets the same grant
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.locks.port import Busy, Grant, Standing
from locks.invariants import Call


@dataclass
class Tenure:
    token: str
    expires_ms: int
    fence: int | None = None
    """None: granted to a waiter that has not heard of it yet."""


@dataclass
class Waiter:
    token: str
    ttl_ms: int
    queue_ms: int
    alive_until_ms: int


@dataclass
class Key:
    tenure: Tenure | None = None
    queue: list[Waiter] = field(default_factory=list)
    queue_ends_ms: int = 0
    last_fence: int = 0


class Reference:
    """One store's locks as they ought to be. `check` raises `AssertionError` naming the promise."""

    def __init__(self, *, silent_ms: int | None = None) -> None:
        """`silent_ms`: a store may forget a queue in which nobody has been alive for so long."""
        self._keys: dict[str, Key] = {}
        self._silent_ms = silent_ms

    def check(self, sent: Call, answer: Any, *, at: float) -> None:
        now_ms = int(at * 1000)
        if sent.verb == "renew":
            for renewal, standing in zip(sent.renewals, answer, strict=True):
                expected = self._renew(renewal.key, renewal.token, renewal.ttl_ms, now_ms)
                assert standing is expected, f"L2: {sent.who} renews {renewal.key}: {standing}, not {expected}"
        elif sent.verb == "release":
            released = self._release(sent.key, sent.token, now_ms)
            assert answer is released, f"L2: {sent.who} releases {sent.key}: {answer}, not {released}"
        else:
            self._acquire(sent, answer, now_ms)

    def fail_over(self, tenures: dict[str, Tenure], queues: dict[str, list[Waiter]]) -> None:
        """Another store took over, which knows only these. What was granted since is forgotten; what
        must not be is that fences grow."""
        for name, key in self._keys.items():
            key.tenure = tenures.get(name)
            key.queue = queues.get(name, [])

    def _acquire(self, sent: Call, answer: Grant | Busy, now_ms: int) -> None:
        key = self._key(sent.key)
        self._forget_silent(key, now_ms)
        holder = self._holder(key, now_ms) or self._hand_over(key, now_ms)
        if holder is not None and holder.token != sent.token:
            assert isinstance(answer, Busy), f"L3: {sent.who} is granted {sent.key}, which is {holder}'s"
            if sent.queue_ms:
                self._enqueue(key, sent, now_ms)
            return
        assert isinstance(answer, Grant), f"L7: {sent.who} is refused {sent.key}, which is free: {answer}"
        if holder is None:
            holder = key.tenure = Tenure(sent.token, 0)
        if holder.fence is None:
            assert answer.fence > key.last_fence, f"L1: {sent.key} had {key.last_fence}, now {answer.fence}"
            holder.fence = key.last_fence = answer.fence
        assert answer.fence == holder.fence, f"L8: {sent.who} had fence {holder.fence}, now {answer.fence}"
        holder.expires_ms = now_ms + sent.ttl_ms

    def _renew(self, name: str, token: str, ttl_ms: int, now_ms: int) -> Standing:
        holder = self._holder(self._key(name), now_ms)
        if holder is None:
            return Standing.GONE
        if holder.token != token:
            return Standing.TAKEN
        holder.expires_ms = now_ms + ttl_ms
        return Standing.OWNED

    def _release(self, name: str, token: str, now_ms: int) -> bool:
        key = self._key(name)
        holder = self._holder(key, now_ms)
        if holder is None or holder.token != token:
            key.queue = [waiter for waiter in key.queue if waiter.token != token]
            return False
        key.tenure = None
        self._hand_over(key, now_ms)
        return True

    def _key(self, name: str) -> Key:
        return self._keys.setdefault(name, Key())

    @staticmethod
    def _holder(key: Key, now_ms: int) -> Tenure | None:
        return key.tenure if key.tenure is not None and key.tenure.expires_ms > now_ms else None

    def _forget_silent(self, key: Key, now_ms: int) -> None:
        if self._silent_ms is not None and now_ms >= key.queue_ends_ms + self._silent_ms:
            key.queue.clear()

    @staticmethod
    def _hand_over(key: Key, now_ms: int) -> Tenure | None:
        while key.queue:
            waiter = key.queue.pop(0)
            if waiter.alive_until_ms > now_ms:
                key.tenure = Tenure(waiter.token, now_ms + min(waiter.ttl_ms, waiter.queue_ms))
                return key.tenure
        return None

    @staticmethod
    def _enqueue(key: Key, sent: Call, now_ms: int) -> None:
        alive_until_ms = now_ms + sent.queue_ms
        key.queue_ends_ms = max(key.queue_ends_ms, alive_until_ms) if key.queue else alive_until_ms
        for waiter in key.queue:
            if waiter.token == sent.token:
                waiter.alive_until_ms = alive_until_ms
                return
        key.queue.append(Waiter(sent.token, sent.ttl_ms, sent.queue_ms, alive_until_ms))
