"""A process that makes guarded writes until it is killed: one line on standard output per acknowledged value.

holder.py NAME URL TTL ITEMS RESOURCE

It also says, every so often, how many tasks it has: everything else about it its parent can see from outside.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import sys

from holdfast.locks import LockClass, LockError, Locks

TELL_EVERY_S = 0.5


def say(word: str, value: object) -> None:
    # In one piece: where Python does not buffer, `print` writes each of its words alone, and a kill may come in between.
    sys.stdout.write(f"{word} {value}\n")
    sys.stdout.flush()


async def write_for_ever(name: str, locks: Locks, lock_class: LockClass, item: str, resource: str) -> None:
    conn = sqlite3.connect(resource, timeout=10)
    count = 0
    while True:
        value = f"{name}.{count}"
        count += 1
        try:
            async with locks.hold(lock_class, item) as lease:
                await asyncio.sleep(0.01 * random.random())
                with lease.guard(conn, item) as db:
                    db.execute("INSERT INTO writes (item, fence, value) VALUES (?, ?, ?)", (item, lease.fence, value))
                say("added", value)
        except (LockError, sqlite3.OperationalError):
            await asyncio.sleep(0.05)  # the store is away, or the lease was; it goes on with another value


async def tell() -> None:
    while True:
        say("tasks", len(asyncio.all_tasks()))
        await asyncio.sleep(TELL_EVERY_S)


async def main(name: str, url: str, ttl: str, items: str, resource: str) -> None:
    logging.disable()  # everything happens to it here
    lock_class = LockClass("soak", ttl=float(ttl), wait=5)
    locks = Locks(url, holder=name)
    while True:
        try:
            await locks.open()
            break
        except LockError:
            await asyncio.sleep(0.05)  # started while the server was away
    async with asyncio.TaskGroup() as group:
        group.create_task(tell())
        for n in range(int(items)):
            group.create_task(write_for_ever(f"{name}.{n}", locks, lock_class, f"item-{n}", resource))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
