"""A process that holds a lock and does as it is told, a word per line: `holder URL PREFIX TTL ITEM FOLDER`.

Answers on standard output: a ">", the word, the time, and what came of it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast.locks import Lease, LockClass, LockError, Locks
from holdfast.locks.guards import guard
from holdfast.locks.port import LockStore, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.ops.drills.book import open_book
from holdfast.ops.drills.tasks import Believer

WAIT_S = 60.0


class Holder:
    def __init__(self, locks: Locks, raw: LockStore, lock_class: LockClass, item: str, folder: Path) -> None:
        self._locks = locks
        self._raw = raw
        self._class = lock_class
        self._item = item
        self._folder = folder
        self._lease: Lease | None = None
        self._believer: Believer | None = None

    async def obey(self, word: str) -> str:
        match word:
            case "ready":
                return "yes"
            case "hold":
                return await self._hold(WAIT_S)
            case "try":
                return await self._hold(0.0)
            case "write":
                return self._write()
            case "release":
                return await self._release()
            case "stale-release":
                return "taken" if await self._raw.release(self.lease.key, self.lease.token) else "refused"
            case "stale-renew":
                return await self._renew_raw()
            case "state":
                return self._state()
            case _:
                return "unknown"

    @property
    def lease(self) -> Lease:
        assert self._lease is not None, "hold first"
        return self._lease

    async def _hold(self, wait_s: float) -> str:
        try:
            self._lease = await self._locks.acquire(self._class, self._item, wait=wait_s)
        except LockError as error:
            return error.code
        self._believer = Believer(self._lease.key, self._lease.fence)
        return f"held {self._lease.fence}"

    def _write(self) -> str:
        """As one does who checked its lease before it was stopped: only the resource can refuse it."""
        assert self._believer is not None, "hold first"
        with open_book(self._folder) as book:
            try:
                with guard(self._believer, book, self._item):
                    row = (self._item, self._believer.fence, 0)
                    book.execute("INSERT INTO entries (item, fence, attempt) VALUES (?, ?, ?)", row)
            except LockError:
                return "refused"
        return "accepted"

    async def _release(self) -> str:
        try:
            await self._locks.release(self.lease)
        except LockError as error:
            return error.code
        return "released"

    async def _renew_raw(self) -> str:
        renewal = Renewal(self.lease.key, self.lease.token, self._class.ttl_ms)
        [standing] = await self._raw.renew([renewal])
        return "taken" if standing is Standing.OWNED else "refused"

    def _state(self) -> str:
        try:
            self.lease.check()
        except LockError as error:
            return error.code
        return "trusted"


async def serve(url: str, prefix: str, ttl: float, item: str, folder: Path) -> None:
    raw = open_store(url, holder="late", prefix=prefix, runtime=SYSTEM)
    async with Locks(url, prefix=prefix) as locks:
        await raw.open()
        holder = Holder(locks, raw, LockClass("drill", ttl=ttl, risk="high"), item, folder)
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            try:
                answer = await holder.obey(word)
            except LockError as error:
                answer = error.code
            print(">", word, f"{SYSTEM.wall_us() / 1e6:.6f}", answer, flush=True)  # noqa: T201  (the drill reads it)


def main() -> None:
    url, prefix, ttl, item, folder = sys.argv[1:]
    asyncio.run(serve(url, prefix, float(ttl), item, Path(folder)))


if __name__ == "__main__":
    main()
