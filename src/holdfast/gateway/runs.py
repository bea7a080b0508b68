"""`/v1/runs`: start, look, list, and what a person may want: cancel, pause, resume, run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

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
from holdfast.flow.runs import RunOrder
from holdfast.flow.session import SessionPolicy
from holdfast.gateway import limits
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.pages import Cursor, Limit, PageQuery, cut, from_cursor, number_from_cursor, read_page, to_cursor
from holdfast.gateway.views import event_view
from holdfast.gateway.waiting import Patience


class RunQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    state: RunState | None = None
    workflow: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class RunWaitQuery(api.Request, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Seconds to wait until the run has ended."""


async def start_run(desk: Desk, call: Call) -> Answer:
    started = await desk.plane.runs.start(_order(call))
    headers = ((b"location", f"/v1/runs/{started.run.id}".encode()), _etag(started.run))
    return Answer(run_view(started.run), status=200 if started.repeated else 202, headers=headers)


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
    order = _order(call)
    revision, graph = await desk.plane.workflows.choose(call.tenant, order.workflow, order.revision)
    bound = graph.bind_input(order.input)
    steps = [
        PlannedStep(id=step.id, kind=step.kind, prospect=step.prospect, why=step.why, case=step.case, items=step.items)
        for step in plan(graph, bound)
    ]
    return Answer(RunPlan(workflow=order.workflow, revision=revision, input=bound, steps=steps))


async def list_runs(desk: Desk, call: Call) -> Answer:
    query: RunQuery = call.query
    store = desk.plane.store

    async def read(before: str | None, limit: int) -> list[Record]:
        wanted = {"state": query.state, "parent": query.workflow}
        return await store.list_records(Kind.RUN, call.tenant, **wanted, before=before or "", limit=limit)

    page, more = await _read_page(read, query.cursor, query.limit)
    return Answer(RunPage(items=[run_view(run_of(record)) for record in page], next_cursor=more))


async def _read_page(
    read: Callable[[str | None, int], Awaitable[list[Record]]], cursor: str | None, limit: int
) -> tuple[list[Record], str | None]:
    """Inputs and outputs are in it, and may be large: it ends early then."""
    page, last = await read_page(
        read,
        start=from_cursor(cursor),
        limit=limit,
        place=lambda record: record.id,
        weigh=lambda record: len(record.body),
    )
    return page, None if last is None else to_cursor(last)


async def get_run(desk: Desk, call: Call) -> Answer:
    """The run now, or after waiting until it has ended."""
    query: RunWaitQuery = call.query
    run_id = call.path["id"]
    hints = desk.feed.runs
    with hints.of(run_id) as hint:
        async with Patience(hint, seconds=query.wait, receive=call.receive) as patience:
            run = await desk.plane.runs.get(call.tenant, run_id)
            while query.wait and not hints.closed and not run.is_terminal:
                if not await patience.wait_hint():
                    break
                run = await desk.plane.runs.get(call.tenant, run_id)
    return Answer(run_view(run), headers=(_etag(run),))


async def list_timeline(desk: Desk, call: Call) -> Answer:
    """Everything that happened to the run and its jobs: attempts, leases, fences, approvals, effects."""
    query: PageQuery = call.query
    run = await desk.plane.runs.get(call.tenant, call.path["id"])
    after = number_from_cursor(query.cursor) or 0
    events = await desk.plane.store.list_events(after=after, limit=query.limit + 1, tenant=call.tenant, run=run.id)
    page, more = cut(events, query.limit, lambda event: event.number)
    return Answer(api.EventPage(items=[event_view(event) for event in page], next_cursor=more))


async def list_steps(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    run = await desk.plane.runs.get(call.tenant, call.path["id"])
    store = desk.plane.store

    async def read(after: str | None, limit: int) -> list[Record]:
        return await store.list_records(Kind.STEP, call.tenant, parent=run.id, after=after or "", limit=limit)

    page, more = await _read_page(read, query.cursor, query.limit)
    return Answer(StepPage(items=[step_view(step_of(record)) for record in page], next_cursor=more))


async def cancel_run(desk: Desk, call: Call) -> Answer:
    wanted: CancelRun = call.body
    by = find_actor(call)
    return _changed(
        await desk.plane.runs.cancel(
            call.tenant, call.path["id"], by=by, reason=wanted.reason, compensate=wanted.compensate
        )
    )


async def pause_run(desk: Desk, call: Call) -> Answer:
    wanted: PauseRun = call.body
    return _changed(
        await desk.plane.runs.pause(call.tenant, call.path["id"], by=find_actor(call), reason=wanted.reason)
    )


async def resume_run(desk: Desk, call: Call) -> Answer:
    return _changed(await desk.plane.runs.resume(call.tenant, call.path["id"], by=find_actor(call)))


async def rerun_run(desk: Desk, call: Call) -> Answer:
    wanted: RerunRun = call.body
    return _changed(await desk.plane.runs.rerun(call.tenant, call.path["id"], step=wanted.step, by=find_actor(call)))


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
