"""Runs whose tenant has all it may have: they wait, say why, and go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import chain, fan_in, runs_staged
from flow.stage import ACME
from flow.telling import undelivered
from holdfast import workflow_engine
from holdfast.core.policy import Rulebook
from holdfast.core.record import Kind, Record
from holdfast.core.run import RunState
from holdfast.core.run_words import Happening
from holdfast.errors import Conflict, TooMany
from holdfast.flow.admission import count_live_runs
from holdfast.flow.advance import Unreadable
from holdfast.flow.runs import RunOrder


@on_virtual_time
async def test_jobs_of_runs_keep_to_the_limit_of_their_tenant_and_all_come_to_their_turn(
    runtime: VirtualRuntime,
) -> None:
    async with runs_staged(runtime, live_jobs_max=3) as staged:
        step = {"kind": "job", "topic": "work"}
        run = await staged.start(
            {"name": "w", "steps": [{"id": "f", "kind": "for_each", "items": "input", "step": step}]}, list(range(8))
        )
        assert sum((await staged.stage.inner.count_jobs()).values()) == 3
        assert run.held is not None
        assert (run.held.code, run.held.message) == ("too-many-jobs", "the tenant has 3 unfinished jobs")
        assert "run.held" in [event.kind for event in await staged.timeline(run.id)]

        with pytest.raises(TooMany):
            await staged.stage.submit("work")
        async with staged.going():
            ended = await staged.wait_ended(run.id, within_s=120)
        assert (ended.state, ended.held) == (RunState.SUCCEEDED, None)
        assert staged.first.counted("runs_recovered", reason="limit-may-have-passed") == 0


@on_virtual_time
async def test_runs_within_runs_keep_to_the_limit_of_their_tenant(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, live_runs_max=3) as staged:
        await staged.apply(chain("inner", 1))
        step = {"kind": "workflow", "workflow": "inner"}
        run = await staged.start(
            {"name": "outer", "steps": [{"id": "f", "kind": "for_each", "items": "input", "step": step}]},
            list(range(5)),
        )
        assert len(await staged.stage.inner.list_records(Kind.RUN, ACME, limit=10)) == 3
        assert run.held is not None
        assert run.held.code == "too-many-runs"

        async with staged.going():
            assert (await staged.wait_ended(run.id, within_s=120)).state is RunState.SUCCEEDED


@on_virtual_time
async def test_an_engine_reads_no_more_results_at_once_than_fit(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of a megabyte each would be a gigabyte."""
    monkeypatch.setattr(workflow_engine, "READ_MAX", 2)
    monkeypatch.setattr(workflow_engine, "LOOK_BYTES_MAX", 100)
    async with runs_staged(runtime) as staged:
        run = await staged.start(fan_in("join", 6))
        for n in range(1, 7):
            await staged.do(run.id, f"a{n}", result=b'"%s"' % (b"x" * 60))
        looks: list[int] = []
        read = staged.first.advancer.read_results

        async def counted(records: Sequence[Record]) -> list[Happening | Unreadable | None]:
            looks.append(len(records))
            return await read(records)

        monkeypatch.setattr(staged.first.advancer, "read_results", counted)
        await staged.first.engine._look()
        assert looks == [2]  # those two are more than 100 bytes
        looks.clear()
        await staged.first.tick()

        assert looks == [2, 2, 2]
        assert (await staged.states(run.id))["last"] == "running"


@on_virtual_time
async def test_reruns_keep_to_the_limit_of_their_tenant(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, live_runs_max=2) as staged:
        ended = [await staged.start(chain("w", 1)) for _ in range(2)]
        async with staged.going():
            for run in ended:
                await staged.wait_ended(run.id, within_s=60)
        live = await staged.start(chain("w", 1))
        rerun = staged.first.runs.rerun

        answers = await asyncio.gather(
            *(rerun(ACME, run.id, step="s1", by="ann") for run in ended), return_exceptions=True
        )

        assert sorted(type(answer).__name__ for answer in answers) == ["Run", "TooMany"]
        assert await count_live_runs(ACME, store=staged.stage.inner) == 2
        with pytest.raises(Conflict, match="is running"):
            # Not that there is no room: it has a place, and waiting for another would not help.
            await rerun(ACME, live.id, step="s1", by="ann")


@undelivered
@on_virtual_time
async def test_a_turn_that_is_refused_takes_nothing_from_a_rate(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 1}
    policy = Rulebook(1, {"format": 1, "rules": [], "default": {"action": "throttle", "throttle": limits}})
    async with runs_staged(runtime, policy=policy) as staged:
        await staged.apply(chain("w", 1))
        # A process whose locks exclude nobody: both begin the same run, and the store refuses one of them.
        _, other = await staged.another("S2", lock_url="sqlite:///:memory:apart")
        order = RunOrder(tenant=ACME, workflow="w", key="k")

        both = await asyncio.gather(staged.first.runs.start(order), other.runs.start(order))

        assert sorted(started.repeated for started in both) == [False, True]
        later = await staged.order("w")
        job = await staged.job_of(later.run.id, "s1")
        assert job.not_before - job.created_at == pytest.approx(60.0, abs=1.0)
