"""`/v1/runs`: start, look, list, and what a person may want: cancel, pause, resume, run again."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, to_builtins

from holdfast import api
from holdfast.api.runs import (
    CancelRun,
    PauseRun,
    PlannedStep,
    RerunRun,
    RunPage,
    RunPlan,
    RunView,
    StartRun,
    StepPage,
    StepView,
)
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, RunState, Step, run_of, step_of
from holdfast.core.run_plan import plan
from holdfast.flow.audit import Entry
from holdfast.flow.runs import RunOrder
from holdfast.flow.session import SessionPolicy
from holdfast.gateway import limits
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import Cursor, Limit, PageQuery, newest_first, number_from_cursor, read_events, read_records
from holdfast.gateway.views import event_page
from holdfast.gateway.waiting import Patience


class RunQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    state: RunState | None = None
    workflow: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class RunWaitQuery(api.Request, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait until the run has ended. It is durable before the waiting begins."""


async def start_run(desk: Desk, call: Call) -> Answer:
    started = await desk.plane.runs.start(_order(call))
    query: RunWaitQuery = call.query
    run = await _run_after_wait(desk, call, started.run.id, query.wait) if query.wait else started.run
    headers = ((b"location", f"/v1/runs/{run.id}".encode()), _etag(run))
    is_known = started.repeated or (query.wait and run.is_terminal)
    return Answer(run_view(run), status=200 if is_known else 202, headers=headers)


def _order(call: Call) -> RunOrder:
    wanted: StartRun = call.body
    key = limits.find_idempotency_key(call.headers)
    limits.stored_json(wanted.input, "input")
    return RunOrder(
        tenant=call.tenant,
        workflow=wanted.workflow,
        revision=wanted.revision,
        input=wanted.input,
        labels=wanted.labels,
        actor=find_actor(call),
        session=wanted.session,
        session_policy=SessionPolicy(wanted.session_policy),
        key=key,
    )


async def plan_run(desk: Desk, call: Call) -> Answer:
    """A dry run: what would happen, as far as it can be known. Nothing is stored."""
    wanted: StartRun = call.body
    limits.stored_json(wanted.input, "input")
    revision, graph = await desk.plane.workflows.choose(call.tenant, wanted.workflow, wanted.revision)
    bound = graph.bind_input(wanted.input)
    steps = [
        PlannedStep(id=step.id, kind=step.kind, prospect=step.prospect, why=step.why, case=step.case, items=step.items)
        for step in plan(graph, bound)
    ]
    return Answer(RunPlan(workflow=wanted.workflow, revision=revision, input=bound, steps=steps))


async def list_runs(desk: Desk, call: Call) -> Answer:
    query: RunQuery = call.query
    read = newest_first(desk.plane.store, Kind.RUN, call.tenant, state=query.state, parent=query.workflow)
    page, more = await read_records(read, query.cursor, query.limit)
    return Answer(RunPage(items=[run_view(run_of(record)) for record in page], next_cursor=more))


async def get_run(desk: Desk, call: Call) -> Answer:
    """The run now, or after waiting until it has ended."""
    query: RunWaitQuery = call.query
    run = await _run_after_wait(desk, call, call.path["id"], query.wait)
    return Answer(run_view(run), headers=(_etag(run),))


async def _run_after_wait(desk: Desk, call: Call, run_id: str, wait_s: float) -> Run:
    """The run once it has ended, or as it is after `wait_s`, or when its caller has hung up."""
    hints = desk.feed.runs
    with hints.of(run_id) as hint:
        async with Patience(hint, seconds=wait_s, receive=call.receive) as patience:
            run = await desk.plane.runs.get(call.tenant, run_id)
            while wait_s and not hints.closed and not run.is_terminal:
                hinted = await patience.wait_hint()
                # After the last wait as well: a hint may be lost.
                run = await desk.plane.runs.get(call.tenant, run_id)
                if not hinted:
                    break
    return run


async def list_timeline(desk: Desk, call: Call) -> Answer:
    """Everything that happened to the run and its jobs: attempts, leases, fences, approvals, effects."""
    query: PageQuery = call.query
    run = await desk.plane.runs.get(call.tenant, call.path["id"])
    after = number_from_cursor(query.cursor) or 0
    page, last = await read_events(desk.plane.store, call.tenant, after=after, limit=query.limit, run=run.id)
    return Answer(event_page(page, last))


async def list_steps(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    run = await desk.plane.runs.get(call.tenant, call.path["id"])
    store = desk.plane.store

    async def read(after: str | None, limit: int) -> list[Record]:
        return await store.list_records(Kind.STEP, call.tenant, parent=run.id, after=after or "", limit=limit)

    page, more = await read_records(read, query.cursor, query.limit)
    return Answer(StepPage(items=[step_view(step_of(record)) for record in page], next_cursor=more))


async def cancel_run(desk: Desk, call: Call) -> Answer:
    wanted: CancelRun = call.body
    entry = _entry(desk, call, "run.cancelled", reason=wanted.reason, compensate=wanted.compensate)
    return _changed(
        await desk.plane.runs.cancel(
            call.tenant,
            call.path["id"],
            by=entry.act.by,
            reason=wanted.reason,
            compensate=wanted.compensate,
            entry=entry,
        )
    )


async def pause_run(desk: Desk, call: Call) -> Answer:
    wanted: PauseRun = call.body
    entry = _entry(desk, call, "run.paused", reason=wanted.reason)
    return _changed(
        await desk.plane.runs.pause(call.tenant, call.path["id"], by=entry.act.by, reason=wanted.reason, entry=entry)
    )


async def resume_run(desk: Desk, call: Call) -> Answer:
    entry = _entry(desk, call, "run.resumed")
    return _changed(await desk.plane.runs.resume(call.tenant, call.path["id"], by=entry.act.by, entry=entry))


async def rerun_run(desk: Desk, call: Call) -> Answer:
    wanted: RerunRun = call.body
    entry = _entry(desk, call, "run.rerun", step=wanted.step)
    return _changed(
        await desk.plane.runs.rerun(call.tenant, call.path["id"], step=wanted.step, by=entry.act.by, entry=entry)
    )


def _entry(desk: Desk, call: Call, action: str, *, reason: str = "", **detail: Any) -> Entry:
    return entry_of(desk, call, action, f"run/{call.path['id']}", reason=reason, **detail)


def _changed(run: Run) -> Answer:
    return Answer(run_view(run), headers=(_etag(run),))


def _etag(run: Run) -> tuple[bytes, bytes]:
    return b"etag", b'"%d"' % run.version


def run_view(run: Run) -> RunView:
    return RunView(
        id=run.id,
        workflow=run.workflow,
        revision=run.revision,
        state=run.state,
        since=run.since,
        input=run.input,
        output=run.output,
        error=run.error,
        labels=run.labels,
        actor=run.actor,
        session=run.session,
        held=None if run.held is None else to_builtins(run.held),
        parent_run=run.parent_run,
        parent_step=run.parent_step,
        generation=run.generation,
        created_at=run.created_at,
        deadline=run.deadline,
        version=run.version,
        fence=run.fence,
    )


def step_view(step: Step) -> StepView:
    return StepView(
        name=step.name,
        kind=step.kind,
        state=step.state,
        since=step.since,
        attempt=step.attempt,
        ref=step.ref,
        output=step.output,
        error=step.error,
        due=step.due,
        created_at=step.created_at,
    )
