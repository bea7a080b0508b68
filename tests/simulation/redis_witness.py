"""What every story on Redis has: a server in memory, the streams to it, and an eye on all that its locks are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from locks.invariants import Call
from locks.reference import Reference

from holdfast.locks.port import LockStore, Renewal
from holdfast.locks.stores.redis.store import RedisStore
from holdfast.locks.stores.redis.wire import SCRIPT, decoded, standings
from simulation.lock_link import Witness
from simulation.redis_link import NoVigil, Stream, WatchedStore, dialling
from simulation.redis_server import RedisServer
from simulation.world import STARTED_AT_S, WALL_AT_START_US, here

URL = "redis://store"
PREFIX = "holdfast:"
TIMEOUT_S = 2.0
QUEUE_LINGERS_MS = 1000
"""How much longer a queue lives on the server than the last of those who wait in it."""
_LOCK_SCRIPT = SCRIPT.encode()


class RedisWitness(Witness):
    streams: list[Stream]
    redis: RedisServer
    far_s = 0.0
    """How far away the server is, one way, at most."""

    def _set_up_store(self) -> None:
        self.streams = []
        self.reference = Reference(silent_ms=QUEUE_LINGERS_MS)
        self.redis = RedisServer(self._now_us, self._ran)

    def _redis_stand_ins(self) -> dict[str, Any]:
        return {
            "holdfast.locks.locks.open_store": self._client_store,
            "holdfast.locks.stores.redis.connection.Vigil": NoVigil,
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

    def end_streams(self) -> None:
        """The server is gone, and what was on its way to it."""
        for stream in self.streams:
            stream.end()
        self.streams.clear()

    # -- what is seen on the way -------------------------------------------------------------------

    def _ran(self, script: bytes, keys: list[bytes], arguments: list[bytes], answer: Any) -> None:
        if script != _LOCK_SCRIPT:
            return
        who = arguments[0].decode()
        items = zip(keys[2:], arguments[2:], answer.decode().split("\n"), strict=True)
        for key, item, line in items:
            self._saw_item(who, key.decode(), item.decode().split(" "), line)

    def _saw_item(self, who: str, key: str, item: Sequence[str], line: str) -> None:
        now = self.world.clock_s
        if line.startswith("E"):  # it was refused, and nothing has changed
            self.world.tell("store", f"{item[0]} for {who} fails: {line}")
            return
        match item:
            case ["A", ttl_ms, queue_ms, _, token]:
                sent = Call(verb="acquire", who=who, sent_at=now, key=key, token=token, ttl_ms=int(ttl_ms))
                self.saw(replace(sent, queue_ms=int(queue_ms)), decoded(line))
            case ["R", token]:
                self.saw(Call(verb="release", who=who, sent_at=now, key=key, token=token), decoded(line))
            case ["N", ttl_ms, token]:
                renewal = Renewal(key, token, int(ttl_ms))
                self.saw(Call(verb="renew", who=who, sent_at=now, renewals=(renewal,)), standings([line]))
