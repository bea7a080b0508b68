"""Approvals in time: reminds whoever still has to decide, and ends what nobody has decided.

Any number of replicas may run it: each write is compare and set, and the second is a no-op. A person
who decides at the same moment either is first, or is told that time was.
"""

from __future__ import annotations

from holdfast.core.approval import from_record
from holdfast.core.record import Kind
from holdfast.errors import StoreUnavailable
from holdfast.flow.approve import Approvals
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop, Overdue
from holdfast.ports import Store

POLL_S = 1.0
BATCH = 200


class ApprovalTimer(Loop):
    def __init__(self, *, store: Store, approvals: Approvals, runtime: Runtime) -> None:
        super().__init__("approvals", every_s=POLL_S, runtime=runtime)
        self._approvals = approvals
        self._overdue = Overdue(Kind.APPROVAL, store=store, runtime=runtime)

    async def tick(self) -> None:
        for record in await self._overdue.list(limit=BATCH):
            try:
                await self._approvals.look_after(from_record(record))
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  (whatever is wrong with one, the others have their time as well)
                self.log_failed(record, error)
                self._overdue.leave(record)
