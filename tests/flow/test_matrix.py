"""The matrix: in a renewal outage all replicas obey within 5 s, and go back by themselves. Row 23, must-show 5."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from locks.faults import Fault, Network
from locks.test_renewal import Work
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault as StoreFault
from flow.stage import Stage, staged
from flow.telling import undelivered
from holdfast.core.audit import Act
from holdfast.core.incident import Incident
from holdfast.core.matrix import Cell, Rules
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind
from holdfast.core.renewals import Ending, counts_from
from holdfast.errors import Invalid, NotFound, StoreUnavailable
from holdfast.flow.audit import Audit, Entry, list_lines
from holdfast.flow.dispatch import JOB
from holdfast.flow.incident import start, stop
from holdfast.flow.kept_locks import RUN
from holdfast.flow.matrix import Difference, list_cells, reset_cell, set_cell, simulate
from holdfast.flow.renewals import RenewalLog
from holdfast.locks import Locks
from holdfast.matrix import WRITE_S, Matrix
from holdfast.wiring import CLASSES

LIVE_S = 5.0


def cell(selector: str, **rules: Any) -> Cell:
    return Cell(selector=selector, rules=Rules(**rules), reason="the store is slow", by="ana", since=0.0, until=None)


def entry(stage: Stage, action: str = "matrix.set") -> Entry:
    act = Act(tenant=PLANE, action=action, subject="matrix/x", by="ana", reason="the store is slow")
    return Entry(Audit(stage.inner, stage.runtime), act)


@dataclass
class Holder:
    """A replica whose locks are reached over a network that can fail, while the plane's store is well."""

    network: Network
    locks: Locks
    service: Matrix
    log: RenewalLog


@asynccontextmanager
async def holder(stage: Stage, runtime: VirtualRuntime, name: str = "R1") -> AsyncIterator[Holder]:
    log = RenewalLog(runtime)
    async with (
        await Network.over("sqlite:///:memory:", runtime) as network,
        network.locks(observer=log, classes=CLASSES) as locks,
    ):
        service = Matrix(
            store=stage.typed_store,
            locks=locks,
            classes=CLASSES,
            renewals=log,
            audit=Audit(stage.inner, runtime),
            holder=name,
            runtime=runtime,
        )
        service.start()
        try:
            yield Holder(network, locks, service, log)
        finally:
            await service.stop()


@undelivered
@on_virtual_time
async def test_in_a_renewal_outage_running_replicas_obey_within_five_seconds_and_revert(
    runtime: VirtualRuntime,
) -> None:
    async with (
        staged(runtime) as stage,
        holder(stage, runtime) as one,
        holder(stage, runtime, "R2") as two,
    ):
        works = [Work(each.locks, RUN, runtime) for each in (one, two)]
        for work, each in zip(works, (one, two), strict=True):
            await work.entered.wait()
            each.network.fault("renew", Fault.FAIL)
        continuing = cell("namespace=workflow.run", action="continue")
        await set_cell(continuing, classes=CLASSES, for_s=120, store=stage.inner, entry=entry(stage))
        set_at = runtime.now()
        await asyncio.sleep(LIVE_S)
        assert all(each.locks.in_force(RUN).on_renewal_failure == "continue" for each in (one, two))
        await asyncio.sleep(100)

        assert [(work.lost, work.lease.suspect) for work in works] == [(None, True)] * 2, (
            "by its class it would be fenced"
        )
        for work in works:
            await asyncio.wait_for(work.task, 60)
            assert work.lost is not None
            assert set_at + 120 <= work.stopped_at <= set_at + 120 + LIVE_S
        await asyncio.sleep(5)

        lines = await list_lines(PLANE, store=stage.inner, limit=10, after=0)
        assert [(line.action, line.by, line.reason) for line in lines] == [
            ("matrix.set", "ana", "the store is slow"),
            ("matrix.reverted", "", "its time is over"),
        ]
        assert await list_cells(store=stage.inner) == []


@undelivered
@on_virtual_time
async def test_a_cell_ends_at_its_time_although_the_store_is_away(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, holder(stage, runtime) as one:
        await set_cell(cell("risk=high", failures=1), classes=CLASSES, for_s=30, store=stage.inner)
        await asyncio.sleep(LIVE_S)
        ruled = one.locks.in_force(RUN).renewal_failures, one.locks.in_force(JOB).renewal_failures
        stage.store.fault("list_records", StoreFault.FAIL)
        await asyncio.sleep(40)
        after = one.locks.in_force(RUN).renewal_failures

        assert (ruled, after) == ((1, 1), 3)


@undelivered
@on_virtual_time
async def test_a_cell_that_cannot_work_is_refused(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for bad, why in [
            (cell("namespace=nobody", failures=1), "no lock of the plane"),
            (cell("namespace=reconciler", failures=1), "no lock of the plane"),
            (cell("risk=high"), "must change something"),
            (cell("risk=high", failures=0), "at least 1"),
            (cell("topic=x", failures=1), "a cell is"),
        ]:
            with pytest.raises(Invalid, match=why):
                await set_cell(bad, classes=CLASSES, for_s=None, store=stage.inner)
        with pytest.raises(NotFound, match="is not set"):
            await reset_cell("risk=high", reason="x", by="", store=stage.inner)

        assert await list_cells(store=stage.inner) == []


@undelivered
@on_virtual_time
async def test_another_matrix_is_tried_on_what_happened(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, holder(stage, runtime) as one:
        work = Work(one.locks, RUN, runtime)
        await work.entered.wait()
        one.network.fault("renew", Fault.FAIL)
        while not work.lease.belief.failures:
            await asyncio.sleep(0.5)
        one.network.heal()  # recovered after one failure
        await asyncio.sleep(RUN.ttl)
        one.network.fault("renew", Fault.FAIL)
        await asyncio.wait_for(work.task, 60)  # fenced after three
        await asyncio.sleep(WRITE_S + RUN.ttl)

        async def tried(**rules: Any) -> list[Difference]:
            return await simulate(
                "namespace=workflow.run", Rules(**rules), classes=CLASSES, cells=(), store=stage.inner
            )

        seen = [(one.episode.ending, one.episode.failures, one.would, one.changed) for one in await tried(failures=1)]
        assert seen == [(Ending.FENCED, 3, "fenced", False), (Ending.RECOVERED, 1, "fenced", True)]
        assert [one.would for one in await tried(action="continue")] == ["suspect", "recovered"]
        assert [one.would for one in await tried(failures=4)] == ["tried again", "recovered"]


@pytest.mark.parametrize("fault", [StoreFault.LOSE_REQUEST, StoreFault.LOSE_REPLY])
@undelivered
@on_virtual_time
async def test_counts_whose_write_was_not_answered_are_neither_lost_nor_doubled(
    runtime: VirtualRuntime, fault: StoreFault
) -> None:
    async with staged(runtime) as stage, holder(stage, runtime) as one:
        await one.service.stop()
        for key in ("x", "y"):
            one.log.fallback(JOB, key)
            stage.store.fault("transact", fault if key == "x" else None, times=1)
            with suppress(StoreUnavailable):
                await one.service.write()
        one.log.fallback(JOB, "z")
        await one.service.write()

        kept = await stage.inner.list_records(Kind.RENEWALS, PLANE, limit=10)
        assert counts_from(kept) == {(JOB.name, Ending.FALLBACK, 0): 3}


@undelivered
@on_virtual_time
async def test_incident_is_stopped_although_somebody_reverts_one_of_its_cells_meanwhile(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime) as stage:
        draft = Incident(number=0, title="slow", started_at=0.0, strict=True, after=0, before={})
        await start(draft, store=stage.inner, entry=entry(stage, "incident.started"))
        door = stage.store.pause("transact")
        ending = entry(stage, "incident.stopped")
        stopping = asyncio.create_task(stop(1, summary="", by="ana", end={}, store=stage.typed_store, entry=ending))
        await door.reached.wait()
        [first, *_] = await list_cells(store=stage.inner)
        await reset_cell(first.selector, reason="not this one", by="ben", store=stage.inner)
        door.open()

        assert (await stopping).stopped_at is not None
        assert await list_cells(store=stage.inner) == []


@undelivered
@on_virtual_time
async def test_hours_are_kept_for_a_day(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, holder(stage, runtime) as one:
        one.log.fallback(JOB, "x")
        await asyncio.sleep(WRITE_S + 2)
        one.log.fallback(JOB, "y")
        await asyncio.sleep(WRITE_S + 2)
        kept = await stage.inner.list_records(Kind.RENEWALS, PLANE, limit=10)
        await one.service.stop()
        await asyncio.sleep(26 * 3600)
        one.service.start()
        await asyncio.sleep(WRITE_S + 2)

        assert [record.version for record in kept] == [2]
        assert await stage.inner.list_records(Kind.RENEWALS, PLANE, limit=10) == []
