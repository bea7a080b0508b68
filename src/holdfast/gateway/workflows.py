"""`/v1/workflows`: definitions and their revisions."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast import api
from holdfast.api.runs import Revision
from holdfast.api.workflows import ApplyWorkflow, WorkflowPage, WorkflowView
from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.workflow import Definition, definition_of, revision_of, workflow_record
from holdfast.core.workflow_check import parse
from holdfast.core.workflow_drawing import draw_mermaid
from holdfast.gateway.calls import Answer, Call
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import Cursor, PageQuery, from_cursor, newest_first, read_page, read_records, to_cursor
from holdfast.ports import Store


class WorkflowQuery(api.Request, kw_only=True):
    revision: Revision | None = None
    """Default: the newest."""


class WorkflowsQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


async def apply_workflow(desk: Desk, call: Call) -> Answer:
    wanted: ApplyWorkflow = call.body
    definition = await _parse(desk, wanted.document)
    if wanted.dry_run:
        now = desk.plane.store.now()
        return Answer(workflow_view(workflow_record(definition, tenant=call.tenant, revision=0, now=now)))
    entry = entry_of(desk, call, "workflow.applied", f"workflow/{definition.name}")
    record, _ = await desk.plane.workflows.apply(call.tenant, definition, entry=entry)
    return Answer(workflow_view(record))


async def _parse(desk: Desk, document: str) -> Definition:
    """Beside the loop: a long one takes up to a second. Raises `Refused`."""
    if desk.plane.runtime.inline():
        return parse(document)
    return await asyncio.get_running_loop().run_in_executor(None, parse, document)


async def get_workflow(desk: Desk, call: Call) -> Answer:
    query: WorkflowQuery = call.query
    return Answer(workflow_view(await desk.plane.workflows.get(call.tenant, call.path["name"], query.revision)))


async def list_workflows(desk: Desk, call: Call) -> Answer:
    query: WorkflowsQuery = call.query
    page, last = await read_page(
        lambda after, limit: _newest_of_each(desk.plane.store, call.tenant, after or "", limit),
        start=from_cursor(query.cursor),
        limit=query.limit,
        place=lambda record: record.parent,
        weigh=lambda record: len(record.body),
    )
    more = None if last is None else to_cursor(last)
    return Answer(WorkflowPage(items=[workflow_view(record) for record in page], next_cursor=more))


async def _newest_of_each(store: Store, tenant: Tenant, after: str, limit: int) -> list[Record]:
    """From name to name: how many revisions there are of one does not matter."""
    found: list[Record] = []
    name = after
    while len(found) < limit:
        behind = f"{name}@~" if name else ""
        page = await store.list_records(Kind.WORKFLOW, tenant, after=behind, limit=1)
        if not page:
            break
        name = page[0].parent
        found += await store.list_records(Kind.WORKFLOW, tenant, parent=name, before="", limit=1)
    return found


async def list_revisions(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    name = call.path["name"]
    await desk.plane.workflows.get(call.tenant, name)
    read = newest_first(desk.plane.store, Kind.WORKFLOW, call.tenant, parent=name)
    page, more = await read_records(read, query.cursor, query.limit)
    return Answer(WorkflowPage(items=[workflow_view(record) for record in page], next_cursor=more))


def workflow_view(record: Record) -> WorkflowView:
    definition = definition_of(record)
    return WorkflowView(
        name=definition.name,
        revision=revision_of(record),
        description=definition.description,
        created_at=record.created_at,
        steps=[step.id for step in definition.steps],
        graph=draw_mermaid(definition),
        definition=msgspec.Raw(record.body),
    )
