"""Runs on virtual time: the parts that advance them, wired as `holdfast.wiring` wires them, on a stage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from locks.virtual import VirtualRuntime

from flow.stage import ACME, Replica, Stage, staged
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, Step, run_of, step_of
from holdfast.core.workflow_check import parse
from holdfast.flow.advance import Advancer
from holdfast.flow.kept_locks import ADMISSION, RUN, KeptLocks
from holdfast.flow.record import End
from holdfast.flow.run_tools import Tools
from holdfast.flow.runs import RunOrder, Runs, Started
from holdfast.flow.submit import Submitter
from holdfast.flow.workflows import Workflows
from holdfast.ports import JobEvent, Store
from holdfast.telemetry import Telemetry
from holdfast.workflow_engine import BUSY_S, RunReconciler, WorkflowEngine


@dataclass(kw_only=True)
class Engine:
    """What one process does for runs."""

    workflows: Workflows
    locks: KeptLocks
    advancer: Advancer
    runs: Runs
    engine: WorkflowEngine
    reconciler: RunReconciler
    telemetry: Telemetry

    async def tick(self) -> None:
        await asyncio.sleep(BUSY_S)  # what it found busy at its last look it does not ask for again at once
        await self.engine.tick()

    def counted(self, metric: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"holdfast_{metric}_total", labels) or 0.0


def make_engine(replica: Replica, submitter: Submitter, *, live_runs_max: int = 1000) -> Engine:
    store, runtime = cast(Store, replica.store), replica.runtime
    kept, gate = (KeptLocks(replica.locks, one, runtime=runtime, is_gone=lambda _: False) for one in (RUN, ADMISSION))
    tools = Tools(
        store=store,
        workflows=Workflows(store),
        submitter=submitter,
        runtime=runtime,
        live_runs_max=live_runs_max,
        giver=replica.scheduler,
    )
    advancer = Advancer(tools=tools, locks=kept, telemetry=replica.telemetry)
    return Engine(
        workflows=tools.workflows,
        locks=kept,
        advancer=advancer,
        runs=Runs(tools=tools, advancer=advancer, gate=gate, telemetry=replica.telemetry),
        engine=WorkflowEngine(store=store, advancer=advancer, locks=(kept, gate), runtime=runtime),
        reconciler=RunReconciler(
            store=store, advancer=advancer, locks=replica.locks, telemetry=replica.telemetry, runtime=runtime
        ),
        telemetry=replica.telemetry,
    )


@dataclass(kw_only=True)
class RunStage:
    stage: Stage
    first: Engine
    live_runs_max: int

    async def apply(self, document: str | dict[str, Any]) -> int:
        """The revision that it became."""
        text = document if isinstance(document, str) else msgspec.json.encode(document).decode()
        record, _ = await self.first.workflows.apply(ACME, parse(text))
        return int(record.id.rpartition("@")[2])

    async def start(self, document: dict[str, Any], given: Any = None, **order: Any) -> Run:
        """A run of this definition."""
        await self.apply(document)
        return (await self.order(document["name"], given, **order)).run

    async def order(self, workflow: str, given: Any = None, tenant: Tenant = ACME, **order: Any) -> Started:
        return await self.first.runs.start(RunOrder(tenant=tenant, workflow=workflow, input=given, **order))

    async def run(self, run_id: str, tenant: Tenant = ACME) -> Run:
        return run_of(await self.stage.inner.get_record(Kind.RUN, tenant, run_id))

    async def step_records(self, run_id: str) -> list[Record]:
        return await self.stage.inner.list_records(Kind.STEP, ACME, parent=run_id, limit=10_000)

    async def steps(self, run_id: str) -> dict[str, Step]:
        return {step.name: step for step in map(step_of, await self.step_records(run_id))}

    async def states(self, run_id: str) -> dict[str, str]:
        return {name: step.state.value for name, step in (await self.steps(run_id)).items()}

    async def job_of(self, run_id: str, step: str) -> Job:
        return await self.stage.job(JobId((await self.steps(run_id))[step].ref))

    async def do(self, run_id: str, step: str, end: End = End.SUCCEEDED, **said: Any) -> Job:
        """A worker takes the job of a step and ends it; the run does not know yet."""
        job = await self.job_of(run_id, step)
        worker = f"w-{step}"
        await self.stage.dispatch(job, worker)
        begun = await self.stage.claim_one(worker)
        assert begun.id == job.id
        await self.stage.complete(begun, end, **said)
        return begun

    async def results(self) -> int:
        """How many results no run has consumed yet."""
        return len(await self.stage.inner.list_due(Kind.RESULT, limit=10_000))

    async def timeline(self, run_id: str) -> list[JobEvent]:
        return await self.stage.inner.list_events(after=0, limit=100_000, run=run_id)

    async def wait_ended(self, run_id: str, *, within_s: float) -> Run:
        async with asyncio.timeout(within_s):
            while not (run := await self.run(run_id)).is_terminal:
                await asyncio.sleep(0.5)
        return run

    async def another(self, name: str, *, lock_url: str = "") -> tuple[Replica, Engine]:
        """Another process on the same store. With a `lock_url` of its own, its locks exclude nobody."""
        replica = await self.stage.replica(name, lock_url=lock_url)
        engine = make_engine(replica, self.stage.submitter, live_runs_max=self.live_runs_max)
        self.stage.stack.push_async_callback(engine.engine.stop)
        return replica, engine

    @asynccontextmanager
    async def going(self, *others: Engine, workers: int = 1, work_s: float = 0.0) -> AsyncIterator[None]:
        """All loops tick, and workers work."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.stage.loops())
            for n in range(workers):
                await stack.enter_async_context(self.stage.working(f"w{n}", work_s=work_s))
            for engine in (self.first, *others):
                for service in (engine.engine, engine.reconciler):
                    service.start()
                    stack.push_async_callback(service.stop)
            yield


@asynccontextmanager
async def runs_staged(runtime: VirtualRuntime, *, live_runs_max: int = 1000, **stage: Any) -> AsyncIterator[RunStage]:
    async with staged(runtime, **stage) as made:
        first = make_engine(made, made.submitter, live_runs_max=live_runs_max)
        made.stack.push_async_callback(first.engine.stop)
        yield RunStage(stage=made, first=first, live_runs_max=live_runs_max)


def chain(name: str, length: int, **more: Any) -> dict[str, Any]:
    """Jobs one after the other, called s1, s2 and so on."""
    steps = [
        {"id": f"s{n}", "kind": "job", "topic": "work", **({"depends_on": [f"s{n - 1}"]} if n > 1 else {})}
        for n in range(1, length + 1)
    ]
    return {"name": name, "steps": steps, **more}


def fan_in(name: str, width: int) -> dict[str, Any]:
    """Jobs side by side, a1, a2, …, and one that waits for all of them: `last`."""
    sides = [f"a{n}" for n in range(1, width + 1)]
    return {
        "name": name,
        "steps": [
            *({"id": side, "kind": "job", "topic": "work"} for side in sides),
            {"id": "last", "kind": "job", "topic": "work", "depends_on": sides},
        ],
    }
