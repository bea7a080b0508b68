"""The pruner on virtual time, its settings, and what readers of events are told about what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from flow.faulty_store import Fault
from flow.stage import Replica, Stage, staged
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast.config import load
from holdfast.core.job import Job
from holdfast.core.retention import DAY_S, Limits, Retention
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.errors import Invalid
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Store
from holdfast.pruner import POLL_S, Pruner
from holdfast.stores import open_store
from holdfast.stores.sqlite import retention
from holdfast.stores.sqlite.store import SqliteStore
from plane.jobs import submitted

BRIEF = Retention(finished_jobs_s=600, dead_letters_s=1200)


def pruner_of(replica: Replica, retention: Retention = BRIEF) -> Pruner:
    return Pruner(
        store=cast(Store, replica.store),
        locks=replica.locks,
        retention=retention,
        telemetry=replica.telemetry,
        runtime=replica.runtime,
    )


async def ended(stage: Stage) -> Job:
    attempt = await stage.begun()
    await stage.complete(attempt)
    return attempt


@on_virtual_time
async def test_what_has_ended_goes_when_its_time_has_come(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        old, live = await ended(stage), await stage.submit()
        pruner = pruner_of(stage)
        pruner.start()
        await asyncio.sleep(600 - 2 * POLL_S)
        assert None not in await stage.inner.find_jobs([old.id])
        await asyncio.sleep(4 * POLL_S)
        await pruner.stop()

        assert await stage.inner.find_jobs([old.id]) == [None]
        assert await stage.job(live.id) == live
        assert stage.counted("jobs_pruned") == 1


@on_virtual_time
async def test_nothing_goes_where_everything_is_kept(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        old = await ended(stage)
        await stage.submit()
        await asyncio.sleep(3000)
        await pruner_of(stage, Retention(finished_jobs_s=0, dead_letters_s=0)).tick()

        assert None not in await stage.inner.find_jobs([old.id])


@on_virtual_time
async def test_one_replica_prunes_at_a_time(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("R2")
        await pruner_of(stage).tick()
        await pruner_of(other).tick()

        assert stage.store.calls["prune"] == 1
        assert "prune" not in other.store.calls


@on_virtual_time
async def test_store_that_is_away_is_pruned_at_the_next_poll(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        old = await ended(stage)
        await stage.submit()
        await asyncio.sleep(700)
        stage.store.fault("prune", Fault.FAIL, times=1)
        pruner = pruner_of(stage)
        pruner.start()
        await asyncio.sleep(3 * POLL_S)
        await pruner.stop()

        assert await stage.inner.find_jobs([old.id]) == [None]


async def test_replay_submitted_between_looking_and_removing_keeps_its_family(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'plane.db'}", topics=Topics(), runtime=SYSTEM)
    assert isinstance(store, SqliteStore)
    await store.open()
    first = await submitted(store, state=State.FAILED)
    limits = Limits(store.now(), store.now())
    await submitted(store)
    found = await store._file.scan(lambda reads: retention.find(reads, limits, 0))
    assert [origin.id for origin in found.going] == [first.id]
    await submitted(store, replay_of=first.id)

    batch = await store._file.write(lambda ledger: retention.prune(ledger, found, limits))

    assert batch.jobs == 0
    assert None not in await store.find_jobs([first.id])
    await store.close()


async def test_removing_walks_through_no_table(tmp_path: Path) -> None:
    """The writer looks up each row it removes: else a batch would hold up every renewal of the file."""
    store = open_store(f"sqlite:///{tmp_path / 'plane.db'}", topics=Topics(), runtime=SYSTEM)
    assert isinstance(store, SqliteStore)
    await store.open()
    await submitted(store, state=State.CANCELLED, payload=b"x" * 5000)
    await submitted(store)
    connection = store._file._part.writer._connection
    assert connection is not None
    seen: dict[str, Any] = {}

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen[sql] = bindings
        return True

    connection.exec_trace = trace
    assert (await store.prune(Limits(store.now(), store.now()))).jobs == 1
    connection.exec_trace = None
    plans = {
        sql: [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        for sql, bindings in seen.items()
        if sql.startswith(("SELECT", "DELETE"))
    }
    await store.close()

    assert len(plans) >= 9
    walks = {
        sql: plan
        for sql, plan in plans.items()
        if any(step.startswith("SCAN holdfast_") for step in plan) and "ORDER BY number DESC LIMIT 1" not in sql
    }
    assert walks == {}


def test_settings_are_read_from_their_section(tmp_path: Path) -> None:
    file = tmp_path / "plane.toml"
    file.write_text("[retention]\nfinished_jobs_s = 60\n")

    assert load(file).retention == Retention(finished_jobs_s=60)
    assert load().retention == Retention(finished_jobs_s=30 * DAY_S, dead_letters_s=90 * DAY_S)


@pytest.mark.parametrize(
    ("line", "why"),
    [("jobs_s = 60", "there are: dead_letters_s"), ("finished_jobs_s = -1", "0 or more"), ("x", "TOML")],
)
def test_wrong_settings_are_told(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "plane.toml"
    file.write_text(f"[retention]\n{line}\n")

    with pytest.raises(Invalid, match=why):
        load(file)
