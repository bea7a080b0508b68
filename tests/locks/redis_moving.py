"""Slots of a cluster that are moved by hand, a step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
import servers

from holdfast.locks.stores.redis.cluster import slot_of
from locks.redis_setup import client


class Slot:
    """A slot on its way from one server to another, step by step as `redis-cli --cluster reshard` does it."""

    def __init__(self, number: int, source: redis.Redis, target: redis.Redis) -> None:
        self._number = number
        self._source = source
        self.target = target
        self._turned_away_before = self._turned_away()

    def begin(self) -> None:
        self.target.cluster("SETSLOT", self._number, "IMPORTING", self._source.cluster("MYID"))
        self._source.cluster("SETSLOT", self._number, "MIGRATING", self.target.cluster("MYID"))

    def carry(self, *keys: str) -> None:
        port = self.target.connection_pool.connection_kwargs["port"]
        assert self._source.migrate("127.0.0.1", port, keys, 0, 5000) in (True, "OK")

    def carry_all(self) -> None:
        while self.carry_some(1000):
            pass

    def carry_some(self, count: int) -> int:
        """How many there were."""
        keys = self._source.cluster("GETKEYSINSLOT", self._number, count)
        if keys:
            self.carry(*keys)
        return len(keys)

    def finish(self) -> None:
        for node in (self.target, self._source):
            node.cluster("SETSLOT", self._number, "NODE", self.target.cluster("MYID"))

    def migrate(self) -> None:
        """All at once, as newer servers do it by themselves."""
        target = self.target.cluster("MYID")
        self._source.cluster("MIGRATESLOTS", "SLOTSRANGE", self._number, self._number, "NODE", target)

    async def has_arrived(self) -> bool:
        """And both of them know."""
        port = self.target.connection_pool.connection_kwargs["port"]
        for node in (self._source, self.target):
            slots: Any = node.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            if not any(first <= self._number <= last and primary[1] == port for first, last, primary, *_ in slots):
                return False
        return True

    async def has_turned_away(self) -> bool:
        return self._turned_away() > self._turned_away_before

    def _turned_away(self) -> int:
        errors = [node.info("errorstats").get("errorstat_TRYAGAIN", {}) for node in (self._source, self.target)]
        return sum(error.get("count", 0) for error in errors)


@contextmanager
def moving(cluster: Sequence[servers.Server], key: str) -> Iterator[Slot]:
    """From the first server to the second."""
    with client(cluster[0]) as source, client(cluster[1]) as target:
        yield Slot(slot_of(key), source, target)
