"""The stories of locks once more, on Redis: the store's own client and script, over a server in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from locks.invariants import Call
from locks.reference import Reference, Tenure, Waiter

from holdfast.locks.port import LockStore, Renewal
from holdfast.locks.stores.redis import RedisStore
from holdfast.locks.stores.redis_wire import decoded, standings
from simulation.lock_story import LockStory
from simulation.redis_link import NoVigil, Stream, WatchedStore, dialling
from simulation.redis_server import RedisServer
from simulation.world import STARTED_AT_S, WALL_AT_START_US, here

URL = "redis://store"
PREFIX = "holdfast:"
TIMEOUT_S = 2.0
QUEUE_LINGERS_MS = 1000
"""How much longer a queue lives on the server than the last of those who wait in it."""


class RedisStory(LockStory):
    _snapshot: Any = None
    """What the copy has that takes over."""

    def _set_up_store(self) -> None:
        self.streams: list[Stream] = []
        self.reference = Reference(silent_ms=QUEUE_LINGERS_MS)
        self.redis = RedisServer(self._now_us, self._ran)

    def _stand_ins(self) -> dict[str, Any]:
        return super()._stand_ins() | {
            "holdfast.locks.locks.open_store": self._client_store,
            "holdfast.locks.stores.redis_connection.Vigil": NoVigil,
            "simulation.world.Lane.create_connection": dialling(self),
        }

    def _client_store(self, *_: Any, **__: Any) -> LockStore:
        runtime, name = here().runtime, here().name
        store = RedisStore(URL, holder=name, prefix=PREFIX, runtime=runtime, timeout_s=TIMEOUT_S)
        return WatchedStore(self, store)

    def _let_go(self) -> None:
        """Nothing outlives the story."""

    def _now_us(self) -> int:
        """Of the server. Whole milliseconds are those that the reference counts in."""
        clock_s = self.world.clock_s
        passed_ms = int(clock_s * 1000) - int(STARTED_AT_S * 1000)
        return WALL_AT_START_US + passed_ms * 1000 + int(clock_s * 1_000_000) % 1000

    # -- what is seen on the way -------------------------------------------------------------------

    def _ran(self, keys: list[bytes], arguments: list[bytes], answer: bytes) -> None:
        who = arguments[0].decode()
        items = zip(keys[2:], arguments[2:], answer.decode().split("\n"), strict=True)
        for key, item, line in items:
            self._saw_item(who, key.decode(), item.decode().split(" "), line)

    def _saw_item(self, who: str, key: str, item: Sequence[str], line: str) -> None:
        now = self.world.clock_s
        match item:
            case ["A", ttl_ms, queue_ms, _, token]:
                sent = Call(verb="acquire", who=who, sent_at=now, key=key, token=token, ttl_ms=int(ttl_ms))
                self.saw(replace(sent, queue_ms=int(queue_ms)), decoded(line))
            case ["R", token]:
                self.saw(Call(verb="release", who=who, sent_at=now, key=key, token=token), decoded(line))
            case ["N", ttl_ms, token]:
                renewal = Renewal(key, token, int(ttl_ms))
                self.saw(Call(verb="renew", who=who, sent_at=now, renewals=(renewal,)), standings([line]))

    # -- a server that is replaced -----------------------------------------------------------------

    def _replicate(self) -> None:
        self._snapshot = self.redis.snapshot()
        self.world.after(self.world.chance.uniform(0.5, 3.0), self._replicate)

    def fail_over(self) -> None:
        self.reached["failover"] += 1
        self.redis = RedisServer(self._now_us, self._ran)
        self.redis.restore(self._snapshot)
        for stream in self.streams:
            stream.end()
        self.streams.clear()
        tenures, queues = {}, {}
        for key in (f"{PREFIX}sim:{key}" for key in self.keys):
            if held := self.redis.find(key.encode()):
                token, fence, _ = held.decode().split(":", 2)
                tenures[key] = Tenure(token, self._ms(self.redis.expires_ms(key.encode())), int(fence))
            queues[key] = self._waiters(key)
        self.reference.fail_over(tenures, queues)

    def _waiters(self, key: str) -> list[Waiter]:
        entries = self.redis.find(f"{{{key}}}:waiters".encode()) or {}
        queue = self.redis.find(f"{{{key}}}:queue".encode()) or []
        return [self._waiter(token.decode(), entries[token]) for token in queue]

    def _waiter(self, token: str, entry: bytes) -> Waiter:
        alive_ms, ttl_ms, queue_ms, *_ = map(int, entry.decode().strip("[]").split(",")[:3])
        return Waiter(token, ttl_ms, queue_ms, self._ms(alive_ms))

    @staticmethod
    def _ms(wall_ms: int) -> int:
        """On the clock of the reference."""
        return wall_ms - WALL_AT_START_US // 1000 + int(STARTED_AT_S * 1000)
