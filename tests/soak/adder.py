"""A process that adds to sets under a lock until it is killed: one line on standard output per acknowledged value.

adder.py NAME URL TTL SETS THINK guards|bare

Each addition reads a whole set, thinks, and writes it back, as agents do. With guards the read and the write
carry the lease's fence; bare, they carry nothing, and the lock is trusted. In both cases the lease renews, and
its holder goes on when it is lost: what is compared is the fence alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from typing import Any

import redis.asyncio
import uvloop

from holdfast.locks import LockClass, LockError, Locks, StaleFence

SHELF = 100
"""A set is kept in pieces of so many values, so that reading one does not take ever longer."""


def piece(number: int, shelf: int) -> tuple[str, str]:
    """The guarded resource, and the key in it."""
    return f"set-{number}-{shelf}", f"{{set-{number}-{shelf}}}:values"


def say(word: str, value: str) -> None:
    # In one piece: where Python does not buffer, `print` writes each of its words alone, and a kill may come in between.
    sys.stdout.write(f"{word} {value}\n")
    sys.stdout.flush()


class Adder:
    def __init__(self, name: str, locks: Locks, client: redis.asyncio.Redis, *, think_s: float, guarded: bool) -> None:
        self._name = name
        self._locks = locks
        self._client = client
        self._think_s = think_s
        self._guarded = guarded

    async def add_for_ever(self, lock_class: LockClass, number: int) -> None:
        """To one of the sets. Every value is sent once; what got no answer may or may not be in the set."""
        count = shelf = 0
        while True:
            value = f"{self._name}.{number}.{count}"
            count += 1
            while True:
                try:
                    async with self._locks.hold(lock_class, f"set-{number}") as lease:
                        full = await self._add(lease, piece(number, shelf), value)
                except StaleFence:
                    say("refused", value)
                    break
                except redis.RedisError:
                    say("unknown", value)  # it was stopped for longer than its client waits for an answer
                    break
                except LockError:
                    continue  # nothing was sent without a lease; busy, or lost before it began
                if not full:
                    break
                shelf += 1

    async def _add(self, lease: Any, where: tuple[str, str], value: str) -> bool:
        """True: there is no room for it here."""
        resource, key = where
        if not self._guarded:
            return await self._rewrite(self._client.execute_command, key, value)
        async with lease.guard(self._client, resource) as guard:
            return await self._rewrite(guard.call, key, value)

    async def _rewrite(self, call: Any, key: str, value: str) -> bool:
        values = json.loads(await call("GET", key) or "[]")
        if len(values) >= SHELF:
            return True
        await asyncio.sleep(self._think_s * random.random())
        await call("SET", key, json.dumps([*values, value]))
        say("added", value)
        return False


async def main(name: str, url: str, ttl: str, sets: str, think: str, kind: str) -> None:
    logging.disable()  # that leases are lost here is nothing to tell
    lock_class = LockClass("set", ttl=float(ttl), wait=60, on_renewal_failure="continue")
    async with (
        redis.asyncio.from_url(url, retry=None) as client,
        Locks(url, holder=name) as locks,
        asyncio.TaskGroup() as group,
    ):
        adder = Adder(name, locks, client, think_s=float(think), guarded=kind == "guards")
        for number in range(int(sets)):
            group.create_task(adder.add_for_ever(lock_class, number))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
