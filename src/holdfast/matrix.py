"""The matrix: has this process's locks obey the cells that people have set. Every replica has one.

A cell is known within `POLL_S`; leases that are held obey at their next renewal. While the store is away,
what was last read holds, and still ends at its time: an outage is when it matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core.audit import Act
from holdfast.core.matrix import Cell, cells_over, governs, settings_for
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind
from holdfast.core.renewals import KEPT_S, Episode, hour_id, hour_of, hour_record
from holdfast.errors import StoreUnavailable
from holdfast.flow.audit import Audit, Entry
from holdfast.flow.matrix import list_cells, revert
from holdfast.flow.renewals import RenewalLog
from holdfast.locks import Locks
from holdfast.locks.policy import LockClass
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import JobEvent, RecordChange, Store, Transaction

POLL_S = 1.0
WRITE_S = 60.0
"""How often the counts of renewals are written down."""
OVER = "its time is over"
GONE = "no cell is set any more"


class Matrix(Listener):
    def __init__(
        self,
        *,
        store: Store,
        locks: Locks,
        classes: Sequence[LockClass],
        renewals: RenewalLog,
        audit: Audit,
        holder: str,
        runtime: Runtime,
    ) -> None:
        super().__init__("matrix", store=store, every_s=POLL_S, runtime=runtime)
        self._locks = locks
        self._classes = [one for one in classes if governs(one)]
        self._renewals = renewals
        self._audit = audit
        self._holder = holder
        self._cells: list[Cell] = []
        self._ruled: dict[str, dict[str, object]] = {}
        self._hour = 0.0
        self._counts: Counter[Episode] = Counter()
        self._hour_version = 0
        self._write_at = 0.0

    async def tick(self) -> None:
        try:
            self._cells = await list_cells(store=self._store)
        finally:
            # Also when the store did not answer: what is known may be over.
            self._obey()
        for cell in self._cells:
            if cell.has_ended(self._store.now()):
                act = Act(tenant=PLANE, action="matrix.reverted", subject=f"matrix/{cell.selector}", reason=OVER)
                await revert(cell, reason=OVER, by="", store=self._store, entry=Entry(self._audit, act))
        if self._store.now() >= self._write_at:
            self._write_at = self._store.now() + WRITE_S
            await self.write()
            await self._forget()

    def heard(self, events: Sequence[JobEvent]) -> None:
        if any(event.kind.startswith("matrix.") for event in events):
            self.wake()

    def _obey(self) -> None:
        now = self._store.now()
        for lock_class in self._classes:
            settings = settings_for(lock_class, self._cells, now=now)
            if settings == self._ruled.get(lock_class.name, {}):
                continue
            self._ruled[lock_class.name] = settings
            cells = cells_over(lock_class, self._cells, now=now)
            ends = [cell.until for cell in cells]
            last = None if None in ends else max((end for end in ends if end is not None), default=None)
            reason = "; ".join(f"{cell.selector}: {cell.reason}" for cell in cells) or GONE
            # The library ends it as well, should nobody be left here to do so.
            for_s = None if last is None else last - now
            self._locks.rule(lock_class.name, reason=reason, for_s=for_s, **settings)

    async def write(self) -> None:
        """The hour's counts, with what has come since the last time."""
        taken = self._renewals.take()
        hour = hour_of(self._store.now())
        if hour != self._hour:
            self._hour, self._counts, self._hour_version = hour, Counter(), 0
        if not taken:
            return
        counts = self._counts + taken
        record = hour_record(hour, self._holder, counts, version=self._hour_version + 1)
        try:
            change = RecordChange(after=record, replaces=self._hour_version)
            [written] = await self._store.transact([Transaction(records=[change])])
        except StoreUnavailable:
            self._renewals.put_back(taken)
            raise
        if written:
            self._counts, self._hour_version = counts, record.version
        else:
            # A write whose answer was lost has come through after all. The next one says the whole hour again, so that
            # nothing is counted twice.
            self._renewals.put_back(taken)
            [found] = await self._store.find_records(Kind.RENEWALS, PLANE, [record.id])
            self._hour_version = 0 if found is None else found.version

    async def _forget(self) -> None:
        """Hours of more than a day ago, whoever wrote them."""
        limit = hour_id(max(0.0, self._store.now() - KEPT_S - 3600.0), "")
        old = await self._store.list_records(Kind.RENEWALS, PLANE, before=limit, limit=100)
        if old:
            gone = [RecordChange(after=record, replaces=record.version, remove=True) for record in old]
            await self._store.transact([Transaction(records=[change]) for change in gone])
