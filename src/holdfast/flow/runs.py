"""Runs: start them, and do to them what a person may want: cancel, pause, resume, run again from a step."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, RunState, run_of
from holdfast.core.run_words import CancelAsked, NewRun, PauseAsked, RerunAsked, ResumeAsked
from holdfast.core.schema import request_digest
from holdfast.errors import Conflict, HoldfastError, KeyReused, NotFound, TooMany
from holdfast.flow.admission import count_live_runs
from holdfast.flow.advance import Advancer
from holdfast.flow.audit import Entry
from holdfast.flow.kept_locks import KeptLocks
from holdfast.flow.run_draft import RunDraft
from holdfast.flow.run_session import enter_session
from holdfast.flow.run_tools import Tools
from holdfast.flow.session import SessionPolicy
from holdfast.flow.submit import new_id
from holdfast.ports import RecordChange
from holdfast.telemetry import Telemetry

RETRY_AFTER_S = 1.0
TRIES = 5
"""Each fails only because another run of the session was started, or has ended, in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a caller wants to be run."""

    tenant: Tenant
    workflow: str
    revision: int | None = None
    """None: the newest."""
    input: Any = None
    labels: dict[str, str] = field(default_factory=dict)
    actor: str = ""
    session: str = ""
    session_policy: SessionPolicy = SessionPolicy.ENQUEUE
    """What to do about the session's runs that have not ended."""
    key: str | None = None
    """An idempotency key, of this tenant's."""

    def digest(self) -> str:
        """Of what makes the run what it is: the same key with another digest is another request."""
        parts = [self.workflow, self.revision, self.input, self.labels, self.session]
        # Only then: keys that were used before there was a choice keep their digests.
        return request_digest(parts if self.session_policy is SessionPolicy.ENQUEUE else [*parts, self.session_policy])


class Started(NamedTuple):
    run: Run
    repeated: bool
    """True: the key was used before, for the same order; `run` is the one it started then."""


class Runs:
    def __init__(self, *, tools: Tools, advancer: Advancer, gate: KeptLocks, telemetry: Telemetry) -> None:
        """`gate` are the admission locks of tenants."""
        self._tools = tools
        self._store = tools.store
        self._advancer = advancer
        self._gate = gate
        self._telemetry = telemetry
        self._waiting: defaultdict[Tenant, list[_Applicant]] = defaultdict(list)
        self._admitting: set[asyncio.Task[None]] = set()

    async def start(self, order: RunOrder) -> Started:
        """Durable when it returns. With a key, the same order again gives the same run. Where its session has others
        it is QUEUED, and begins when they have ended.

        Raises `NotFound` (no such workflow), `Invalid` (the input), `KeyReused`, `TooMany` (the tenant has
        as many live runs as it may), `SessionBusy`, `LockBusy`.
        """
        known = await self._find_by_key(order)
        if known is not None:
            return known
        revision, graph = await self._tools.workflows.choose(order.tenant, order.workflow, order.revision)
        new = NewRun(
            id=new_id(self._tools.runtime),
            tenant=order.tenant,
            revision=revision,
            input=graph.bind_input(order.input),
            actor=order.actor,
            session=order.session,
            labels=order.labels,
        )
        applicant = _Applicant(order, new, asyncio.get_running_loop().create_future())
        queue = self._waiting[order.tenant]
        queue.append(applicant)
        if len(queue) == 1:
            # One of them asks for all that come meanwhile: a lock and a commit for each would be their speed limit.
            task = asyncio.create_task(self._admit(order.tenant))
            self._admitting.add(task)
            task.add_done_callback(self._admitting.discard)
        return await applicant.answer

    async def get(self, tenant: Tenant, run_id: str) -> Run:
        """Raises `NotFound`."""
        [record] = await self._store.find_records(Kind.RUN, tenant, [run_id])
        if record is None:
            raise NotFound(f"no run {run_id}")
        return run_of(record)

    async def cancel(
        self, tenant: Tenant, run_id: str, *, by: str, reason: str, compensate: bool, entry: Entry | None = None
    ) -> Run:
        """Stop it: nothing more begins, what runs is asked to stop, and what was done is undone if wanted."""
        return await self._advancer.ask(tenant, run_id, CancelAsked(by, reason, compensate), entry=entry)

    async def pause(self, tenant: Tenant, run_id: str, *, by: str, reason: str, entry: Entry | None = None) -> Run:
        """Begin nothing more; what is under way ends, and its results are kept."""
        return await self._advancer.ask(tenant, run_id, PauseAsked(by, reason), entry=entry)

    async def resume(self, tenant: Tenant, run_id: str, *, by: str, entry: Entry | None = None) -> Run:
        return await self._advancer.ask(tenant, run_id, ResumeAsked(by), entry=entry)

    async def rerun(self, tenant: Tenant, run_id: str, *, step: str, by: str, entry: Entry | None = None) -> Run:
        """Begin a run that has ended again at `step`; what came before it stays as it was. In its session it is the last.

        Raises `TooMany` as `start` does: from now on it is one of the tenant's unfinished runs again."""
        async with self._gate.hold(tenant):
            room = await self._room(tenant)
            # Asked for after the room: if it has not ended by now it has a place already, and is told that it has not ended.
            if room < 1 and (await self.get(tenant, run_id)).is_terminal:
                raise self._too_many()
            return await self._advancer.ask(tenant, run_id, RerunAsked(step, by), entry=entry)

    # -- admission ---------------------------------------------------------------------------------

    async def _admit(self, tenant: Tenant) -> None:
        batch: list[_Applicant] = []
        try:
            async with self._gate.hold(tenant):
                batch = self._waiting.pop(tenant)
                await self._admit_together(tenant, batch)
        except BaseException as error:
            for applicant in batch or self._waiting.pop(tenant, []):
                applicant.fail(error)
            if not isinstance(error, Exception):
                raise

    async def _admit_together(self, tenant: Tenant, batch: list[_Applicant]) -> None:
        room = max(0, await self._room(tenant))
        for applicant in batch[room:]:
            applicant.fail(self._too_many())
        drafted = []
        for applicant in batch[:room]:
            try:
                drafted.append((applicant, *await self._draft(applicant)))
            except HoldfastError as error:
                applicant.fail(error)
        if not drafted:
            return
        # Together, which is one commit: the first step of a run is often over before a lock could be asked for.
        writing = self._tools.transact([draft.transaction() for _, _, draft in drafted])
        begun = [run.id for _, run, _ in drafted if run.state is RunState.RUNNING]
        written, _ = await asyncio.gather(writing, self._advancer.expect(begun))
        for (applicant, run, _), ok in zip(drafted, written, strict=True):
            if ok:
                self._telemetry.run_started(run)
                applicant.succeed(Started(run, repeated=False))
            else:
                await self._answer_refused(applicant)

    async def _room(self, tenant: Tenant) -> int:
        return self._tools.live_runs_max - await count_live_runs(tenant, store=self._store)

    def _too_many(self) -> TooMany:
        return TooMany(f"the tenant has {self._tools.live_runs_max} unfinished runs", retry_after_s=RETRY_AFTER_S)

    async def _answer_refused(self, applicant: _Applicant) -> None:
        """Somebody was quicker with the same key, or in the same session."""
        try:
            for _ in range(TRIES):
                known = await self._find_by_key(applicant.order)
                if known is not None:
                    applicant.succeed(known)
                    return
                run, draft = await self._draft(applicant)
                [written] = await self._tools.transact([draft.transaction()])
                if written:
                    self._telemetry.run_started(run)
                    applicant.succeed(Started(run, repeated=False))
                    return
            raise Conflict("the run could not be started; try again")
        except HoldfastError as error:
            applicant.fail(error)

    async def _draft(self, applicant: _Applicant) -> tuple[Run, RunDraft]:
        order, new = applicant.order, applicant.new
        draft = RunDraft(self._tools, order.tenant)
        graph = await self._tools.workflows.graph(order.tenant, order.workflow, new.revision)
        if order.session:
            policy = order.session_policy
            session, stops = await enter_session(order.tenant, order.session, policy, store=self._store)
            for one in stops:
                draft.stop(one, by=f"run {new.id}", compensate=policy is SessionPolicy.ROLLBACK)
            run = await draft.begin(graph, replace(new, queued=bool(session.seats)))
            draft.change(RecordChange(after=session.joined(run), replaces=session.version))
        else:
            run = await draft.begin(graph, new)
        if order.key is not None:
            draft.keep(
                Record(
                    kind=Kind.KEY,
                    tenant=order.tenant,
                    id=order.key,
                    parent=run.id,
                    created_at=run.created_at,
                    body=msgspec.json.encode(order.digest()),
                )
            )
        return run, draft

    async def _find_by_key(self, order: RunOrder) -> Started | None:
        """The run that the order's key has started before. Raises `KeyReused`."""
        if order.key is None:
            return None
        [key] = await self._store.find_records(Kind.KEY, order.tenant, [order.key])
        if key is None:
            return None
        if msgspec.json.decode(key.body) != order.digest():
            raise KeyReused(f"this key was used for another request; it started run {key.parent}")
        return Started(await self.get(order.tenant, key.parent), repeated=True)


class _Applicant(NamedTuple):
    order: RunOrder
    new: NewRun
    answer: asyncio.Future[Started]

    def succeed(self, started: Started) -> None:
        if not self.answer.done():
            self.answer.set_result(started)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
