"""Explain a run: what of it has not ended, and why each of those is where it is."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.approval import from_record
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.core.run import Run, RunState, Step, StepState, run_of, step_of
from holdfast.core.why import Finding
from holdfast.core.why_approval import awaits_approval
from holdfast.core.why_facts import RunFacts, StepFacts
from holdfast.core.why_run import why_run
from holdfast.errors import NotFound
from holdfast.flow.explain import EVENTS_MAX, EVENTS_PAGE, Explainer, Explanation
from holdfast.flow.kept_locks import RUN
from holdfast.flow.run_session import find_session
from holdfast.flow.workflows import Workflows
from holdfast.locks import Locks
from holdfast.ports import JobEvent, Store

STEPS_MAX = 20
"""Of each state: whoever has more of them in trouble has the same trouble in all."""
UNENDED = (
    StepState.ASKING,
    StepState.RUNNING,
    StepState.RETRYING,
    StepState.DELAYED,
    StepState.STOPPING,
    StepState.READY,
)
DEPTH_MAX = 8


class RunExplainer:
    def __init__(
        self, explainer: Explainer, *, store: Store, locks: Locks, workflows: Workflows, is_gone: Callable[[str], bool]
    ) -> None:
        self._explainer = explainer
        self._store = store
        self._locks = locks
        self._workflows = workflows
        self._is_gone = is_gone

    async def run(self, tenant: Tenant, run_id: str) -> Explanation:
        """Raises `NotFound`."""
        run = await self._find(tenant, run_id)
        if run is None:
            raise NotFound(f"no run {run_id}")
        facts = await self._facts(run, depth=0)
        return Explanation(subject="run", id=run.id, state=run.state, at=facts.now, findings=why_run(facts))

    async def _find(self, tenant: Tenant, run_id: str) -> Run | None:
        [record] = await self._store.find_records(Kind.RUN, tenant, [run_id])
        return None if record is None else run_of(record)

    async def _facts(self, run: Run, *, depth: int) -> RunFacts:
        if run.is_terminal:
            return RunFacts(run=run, now=self._store.now())
        if run.state is RunState.QUEUED:
            return await self._queued_facts(run, depth=depth)
        steps: list[StepFacts] = []
        for state in UNENDED:
            found = await self._store.list_records(Kind.STEP, run.tenant, state=state, parent=run.id, limit=STEPS_MAX)
            for record in found:
                step = step_of(record)
                # What fans out is as its parts are, which are steps themselves.
                if step.fan is None:
                    steps.append(StepFacts(step=step, cause=await self._cause(step, depth)))
        unheard = await self._store.list_records(Kind.RESULT, run.tenant, parent=run.id, limit=STEPS_MAX)
        graph = await self._workflows.graph(run.tenant, run.workflow, run.revision)
        holder = await self._locks.inspect(RUN.name, run.id)
        paused = await self._pause_of(run) if run.state is RunState.PAUSED else {}
        return RunFacts(
            run=run,
            now=self._store.now(),
            steps=steps,
            max_parallel=graph.definition.max_parallel,
            unheard_since=min((record.created_at for record in unheard), default=None),
            paused_by=str(paused.get("by", "")),
            pause_reason=str(paused.get("reason", "")),
            lock=holder,
            is_holder_gone=holder is not None and self._is_gone(holder.holder),
        )

    async def _queued_facts(self, run: Run, *, depth: int) -> RunFacts:
        """Of a run whose turn has not come: only who is ahead of it matters."""
        ahead = [seat.run for seat in (await find_session(run.tenant, run.session, store=self._store)).ahead_of(run)]
        unheard = await self._store.list_records(Kind.RESULT, run.tenant, parent=run.id, limit=STEPS_MAX)
        first = await self._find(run.tenant, ahead[0]) if ahead and depth < DEPTH_MAX else None
        return RunFacts(
            run=run,
            now=self._store.now(),
            unheard_since=min((record.created_at for record in unheard), default=None),
            ahead=ahead,
            ahead_cause=None if first is None else why_run(await self._facts(first, depth=depth + 1))[0],
        )

    async def _cause(self, step: Step, depth: int) -> Finding | None:
        """Why what the step waits for has not ended."""
        if not step.ref:
            return None
        if step.kind == "workflow":
            child = await self._find(step.tenant, step.ref) if depth < DEPTH_MAX else None
            return None if child is None else why_run(await self._facts(child, depth=depth + 1))[0]
        if step.state is StepState.ASKING:
            [record] = await self._store.find_records(Kind.APPROVAL, step.tenant, [step.ref])
            return None if record is None else awaits_approval(step.ref, from_record(record), None)
        if step.state in (StepState.RUNNING, StepState.STOPPING):
            return await self._explainer.cause_of(step.tenant, JobId(step.ref))
        return None

    async def _pause_of(self, run: Run) -> dict[str, object]:
        """Who paused it, by the last event that says so."""
        said: dict[str, object] = {}
        page: list[JobEvent] = []
        after = read = 0
        while read < EVENTS_MAX:
            page = await self._store.list_events(after=after, limit=EVENTS_PAGE, tenant=run.tenant, run=run.id)
            for event in page:
                if event.kind == "run.paused":
                    said = event.detail
            if len(page) < EVENTS_PAGE:
                break
            after, read = page[-1].number, read + len(page)
        return said
