"""Workflows: keep definitions by revision, and have those that runs follow at hand."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.workflow import Definition, definition_of, revision_of, workflow_record, workflow_record_id
from holdfast.core.workflow_graph import Graph
from holdfast.errors import Conflict, NotFound
from holdfast.flow.audit import Entry, transact
from holdfast.ports import Note, RecordChange, Store, Transaction

STEPS_KEPT_MAX = 20_000
"""Of the definitions that are kept compiled. Beyond it those go that no run has asked for the longest."""
TRIES = 5


class Workflows:
    def __init__(self, store: Store, *, threads: bool = False) -> None:
        """`threads`: definitions are compiled beside the loop, for a long one takes up to a second."""
        self._store = store
        self._threads = threads
        self._graphs: dict[tuple[Tenant, str], Graph] = {}
        """By the id of the record, which never changes: a revision stays what it was."""

    async def apply(self, tenant: Tenant, definition: Definition, *, entry: Entry | None = None) -> tuple[Record, bool]:
        """Store a definition as the next revision of its workflow; True if it is new.

        The same definition as the newest is that one. Runs that are under way keep theirs.
        """
        body = msgspec.json.encode(definition)
        for _ in range(TRIES):
            newest = await self._newest(tenant, definition.name)
            if newest is not None and newest.body == body:
                return newest, False
            now = self._store.now()
            revision = 1 if newest is None else revision_of(newest) + 1
            record = workflow_record(definition, tenant=tenant, revision=revision, now=now)
            detail = {"workflow": definition.name, "revision": revision}
            change = Transaction(
                records=[RecordChange(after=record, replaces=0)],
                notes=[Note(tenant, JobId(""), "workflow.applied", detail)],
            )
            if await transact(change, store=self._store, entry=entry, revision=revision):
                return record, True
        raise Conflict(f"workflow {definition.name} keeps changing; try again")

    async def get(self, tenant: Tenant, name: str, revision: int | None = None) -> Record:
        """A revision; without a number, the newest. Raises `NotFound`."""
        found = (
            await self._newest(tenant, name)
            if revision is None
            else (await self._store.find_records(Kind.WORKFLOW, tenant, [workflow_record_id(name, revision)]))[0]
        )
        if found is None:
            raise NotFound(f"no workflow {name}" if revision is None else f"no revision {revision} of workflow {name}")
        return found

    async def graph(self, tenant: Tenant, name: str, revision: int) -> Graph:
        """For a run of it: what was compiled once is used again. Raises `NotFound`."""
        key = (tenant, workflow_record_id(name, revision))
        graph = self._graphs.pop(key, None)
        if graph is None:
            graph = await self._compile(await self.get(tenant, name, revision))
            self._make_room(len(graph.nodes))
        self._graphs[key] = graph  # the last one to go, from now on
        return graph

    async def _compile(self, record: Record) -> Graph:
        if not self._threads:
            return _graph_of(record)
        return await asyncio.get_running_loop().run_in_executor(None, _graph_of, record)

    def _make_room(self, steps: int) -> None:
        kept = steps + sum(len(graph.nodes) for graph in self._graphs.values())
        while self._graphs and kept > STEPS_KEPT_MAX:
            kept -= len(self._graphs.pop(next(iter(self._graphs))).nodes)

    async def choose(self, tenant: Tenant, name: str, revision: int | None) -> tuple[int, Graph]:
        """For a run to come. Raises `NotFound`."""
        chosen = revision or revision_of(await self.get(tenant, name))
        return chosen, await self.graph(tenant, name, chosen)

    async def _newest(self, tenant: Tenant, name: str) -> Record | None:
        found = await self._store.list_records(Kind.WORKFLOW, tenant, parent=name, before="", limit=1)
        return found[0] if found else None


def _graph_of(record: Record) -> Graph:
    return Graph.of(definition_of(record))
