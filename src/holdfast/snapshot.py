"""The snapshot writer: one replica keeps the worker registry in the store, so that others start warm."""

from __future__ import annotations

import logging

import msgspec

from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import Store
from holdfast.registry import Registry

logger = logging.getLogger("holdfast")

WRITE_S = 5.0
WRITER = LockClass("snapshot", ttl=10, pattern="ttl_hold", key_prefix="scheduler:snapshot:")
"""Written every 5 s under a window of 10 s: another replica takes over within 15 s."""


class SnapshotWriter(Loop):
    def __init__(self, *, store: Store, locks: Locks, registry: Registry, runtime: Runtime) -> None:
        super().__init__("snapshot", every_s=WRITE_S, runtime=runtime)
        self._store = store
        self._locks = locks
        self._registry = registry

    async def warm_up(self) -> None:
        """At start: know whom another replica knew. A snapshot that cannot be read is as good as none."""
        snapshot = await self._store.read_snapshot()
        if snapshot is None:
            return
        try:
            self._registry.warm_up(snapshot)
        except msgspec.DecodeError as error:
            # Of another version of Holdfast, in the middle of an upgrade: workers will say hello.
            logger.warning("snapshot.unreadable %s", error, extra={"event": "snapshot.unreadable"})

    async def tick(self) -> None:
        window = await self._locks.claim(WRITER, "writer")
        if window is None:
            await self.warm_up()
            return
        snapshot = self._registry.to_snapshot(fence=window.fence, seq=window.next_seq(), now=self._store.now())
        # Fenced: a writer that was paused past its window cannot overwrite its successor's.
        if await self._store.write_snapshot(snapshot):
            self._registry.wrote(snapshot)
