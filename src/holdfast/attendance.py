"""Attendance: tells the other processes of the plane who speaks to this one, and hears the same from them.

A gateway hears workers; schedulers give them jobs, reconcilers take back what silent ones have. Where
these are processes of their own, or one of several, what they know of workers goes through the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast.core.policy_version import PLANE
from holdfast.core.presence import Presence, from_record, to_record
from holdfast.core.record import Kind, Record
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import RecordChange, Store, Transaction
from holdfast.registry import Registry

logger = logging.getLogger("holdfast")

LOOK_S = 0.5
"""So long it takes at most until a new worker is known everywhere."""
TELL_S = 3.0
"""A heartbeat is passed on this much later, at most. Together with the heartbeat's own pace that must be
shorter than a worker may be silent."""
PROCESSES_MAX = 1000


class Attendance(Loop):
    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        roles: Sequence[str],
        wake: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        """`wake` is called when workers may have room of which was not known here."""
        super().__init__("attendance", every_s=LOOK_S, runtime=runtime)
        self._store = store
        self._registry = registry
        self._roles = tuple(roles)
        self._wake_scheduler = wake
        self._process = runtime.token()[:16]
        self._since = 0.0
        self._version = 0
        self._tell_at = 0.0
        self._heard: dict[str, int] = {}
        """The version of each process's word that was last listened to."""

    def start(self) -> None:
        self._registry.on_change = self._tell_now
        super().start()

    async def stop(self) -> None:
        """Nobody need wait for it to be forgotten."""
        await super().stop()
        if self._version:
            gone = to_record(self._presence(self._store.now()), version=self._version)
            with suppress(StoreUnavailable):  # then they forget it by and by
                await self._store.transact([Transaction(records=[_removal(gone)])])
                self._version = 0

    async def tick(self) -> None:
        now = self._store.now()
        if now >= self._tell_at:
            await self._tell(now)
        await self._listen(now)
        self._registry.forget_old(now=now)

    def _tell_now(self) -> None:
        self._tell_at = 0.0
        self.wake()

    async def _tell(self, now: float) -> None:
        # Noted first: what changes while this is written is told with the next word.
        self._tell_at = now + TELL_S
        self._since = self._since or now
        told = to_record(self._presence(now), version=self._version + 1)
        [written] = await self._store.transact(
            [Transaction(records=[RecordChange(after=told, replaces=self._version)])]
        )
        if written:
            self._version += 1
        else:
            # It was taken for gone, having been stopped for long; or the answer to its last word was lost.
            [found] = await self._store.find_records(Kind.PRESENCE, PLANE, [self._process])
            self._version = 0 if found is None else found.version
            self._tell_now()

    async def _listen(self, now: float) -> None:
        others = await self._store.list_records(Kind.PRESENCE, PLANE, limit=PROCESSES_MAX)
        self._heard = {other.id: self._heard.get(other.id, 0) for other in others}
        news = [self._hear(other) for other in others if other.id != self._process]
        if any(news):
            self._wake_scheduler()
        gone = [other for other in others if other.due is not None and other.due <= now and other.id != self._process]
        if gone:
            await self._store.transact([Transaction(records=[_removal(other)]) for other in gone])

    def _hear(self, other: Record) -> bool:
        if self._heard[other.id] == other.version:
            return False
        self._heard[other.id] = other.version
        try:
            return self._registry.learn(bytes(from_record(other).workers))
        except msgspec.DecodeError as error:
            # Of another version of Holdfast, in the middle of an upgrade: its workers will speak to others, too.
            logger.warning("presence.unreadable %s", error, extra={"event": "presence.unreadable"})
            return False

    def _presence(self, now: float) -> Presence:
        return Presence(
            process=self._process,
            roles=self._roles,
            at=now,
            since=self._since,
            workers=msgspec.Raw(self._registry.told()),
        )


def _removal(record: Record) -> RecordChange:
    return RecordChange(after=record, replaces=record.version, remove=True)
