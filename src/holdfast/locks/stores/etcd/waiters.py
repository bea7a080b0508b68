"""The waiters of one etcd store, and the watch that tells them when whoever is ahead has gone."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.locks.errors import Unavailable
from holdfast.locks.stores.etcd.layout import all_contenders, digest_of

if TYPE_CHECKING:
    from holdfast.locks.port import WakeCallback
    from holdfast.locks.runtime import Runtime
    from holdfast.locks.stores.etcd.api import Gateway

RECONNECT_S = 0.5

#: The place of a waiter that is still entering the queue: behind all that are in it.
ENTERING = sys.maxsize


class Waiters:
    def __init__(self, gateway: Gateway, *, prefix: str, runtime: Runtime) -> None:
        self.wake: WakeCallback = lambda key, token: None
        self._gateway = gateway
        self._prefix = prefix
        self._runtime = runtime
        #: By key and digest: (create revision, token).
        self._waiting: dict[str, dict[str, tuple[int, str]]] = {}
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_for_ever(), name="holdfast-etcd-watch")

    async def stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def note(self, key: str, token: str, created: int) -> None:
        self._waiting.setdefault(key, {})[digest_of(token)] = (created, token)

    def forget(self, key: str, digest: str) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(digest, None)
            if not waiting:
                del self._waiting[key]

    async def _watch_for_ever(self) -> None:
        start, end = all_contenders(self._prefix)
        while True:
            # Wake-ups are hints: while the watch is down waiters ask again by themselves, and hear
            # what is wrong. Who entered the queue before it is up again may have missed a deletion.
            with suppress(Unavailable):
                await self._gateway.watch_deletes(
                    start, end, created=lambda: self.wake("", ""), deleted=self._contender_gone
                )
            await asyncio.sleep(self._runtime.jitter(RECONNECT_S))

    def _contender_gone(self, name: bytes) -> None:
        """Wake the first of our waiters: it alone can have become the holder."""
        start, _, digest = name.partition(b"\0")
        key = start.decode()
        self.forget(key, digest.decode())
        waiting = self._waiting.get(key)
        if waiting:
            _, token = min(waiting.values())
            self.wake(key, token)
