"""A transaction in the making: all that one advance of a run writes, together with what it starts and stops.

The core says what is to happen, as commands. Here each becomes a part of the same transaction as the
run's next version: the jobs it submits, the approvals it asks for, the runs within it. So nothing of
it can be lost or happen twice, whenever the engine dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.advance import advance, begin, needed
from holdfast.core.approval import ApprovalState, Terms, ask_step
from holdfast.core.approval import end as end_approval
from holdfast.core.approval import from_record as approval_of
from holdfast.core.approval import to_record as approval_record
from holdfast.core.decision import EXPIRES_S
from holdfast.core.job import JobId, Tenant, may
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, RunState, Step, run_record, step_of, step_record, step_record_id
from holdfast.core.run_result import About, CancelWish, ChildResult
from holdfast.core.run_words import (
    Advance,
    ApprovalDecided,
    AskApproval,
    CancelJob,
    CancelRun,
    ChildRunEnded,
    Command,
    Draw,
    Happening,
    JobEnded,
    Needed,
    NewRun,
    Notify,
    NotifySent,
    Said,
    StartRun,
    SubmitJob,
    TellParent,
    WithdrawApproval,
)
from holdfast.core.states import Event, State
from holdfast.core.webhook import post_to, webhook_from
from holdfast.core.workflow_graph import Graph
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.flow.cancel import cancelling
from holdfast.flow.gate import followed
from holdfast.flow.submit import Order, Submitter, new_id
from holdfast.flow.workflows import Workflows
from holdfast.locks.runtime import Runtime
from holdfast.ports import Change, Note, RecordChange, Store, Submission, Transaction

PAGE = 1000
REMEMBERED_MAX = 64
"""Steps of a run that are remembered from one advance to the next."""
REMEMBERED_BYTES = 4096
"""What a step may have in it for that. Others are read again: a thousand runs are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    store: Store
    workflows: Workflows
    submitter: Submitter
    runtime: Runtime


class RunDraft:
    def __init__(self, tools: Tools, tenant: Tenant) -> None:
        self._tools = tools
        self._tenant = tenant
        self._now = tools.store.now()
        self._draw = Draw(chance=lambda: 2 * tools.runtime.jitter(1.0) - 1.0, new_id=lambda: new_id(tools.runtime))
        self._submissions: dict[str, Submission] = {}
        self._changes: list[Change] = []
        self._records: list[RecordChange] = []
        self._notes: list[Note] = []
        self.steps_after: dict[str, Step | None] = {}
        """Of the run that was advanced last: steps as they are once this is written; None: there is none."""

    async def begin(self, graph: Graph, new: NewRun, *, fence: int = 0) -> Run:
        """A new run, and what it begins with."""
        first = begin(graph, new, now=self._now, draw=self._draw)
        return await self._finish(graph, first, _Steps(whole=True), fence)

    async def go_on(
        self,
        graph: Graph,
        run: Run,
        happenings: Sequence[Happening],
        *,
        fence: int,
        known: Mapping[str, Step | None] | None = None,
    ) -> Run:
        """The run after what has happened. Unchanged if it was no news to it. `known` are steps that need not be read."""
        steps = _Steps(known=known)
        await self._load(run, steps, needed(graph, run, happenings))
        return await self._finish(graph, await self._advanced(graph, run, steps, happenings), steps, fence)

    def consume(self, records: Iterable[Record]) -> None:
        """These are taken away with it: it knows of them from now on."""
        self._records += [RecordChange(after=record, replaces=record.version, remove=True) for record in records]

    def keep(self, record: Record) -> None:
        """A new record that must not be there yet."""
        self._records.append(RecordChange(after=record, replaces=0))

    def transaction(self) -> Transaction:
        return Transaction(
            submissions=list(self._submissions.values()),
            changes=self._changes,
            records=self._records,
            notes=self._notes,
        )

    # ----------------------------------------------------------------------------------------------

    async def _advanced(self, graph: Graph, run: Run, steps: _Steps, happenings: Sequence[Happening]) -> Advance:
        while True:
            answer = advance(graph, run, steps.known, happenings, whole=steps.whole, now=self._now, draw=self._draw)
            if isinstance(answer, Advance):
                return answer
            await self._load(run, steps, answer)

    async def _load(self, run: Run, steps: _Steps, wanted: Needed) -> None:
        if wanted.whole:
            after = ""
            while True:
                page = await self._tools.store.list_records(
                    Kind.STEP, self._tenant, parent=run.id, after=after, limit=PAGE
                )
                for record in page:
                    step = step_of(record)
                    steps.known.setdefault(step.name, step)
                if len(page) < PAGE:
                    break
                after = page[-1].id
            steps.whole = True
        missing = [name for name in sorted(wanted.names) if name not in steps.known]
        if missing and not steps.whole:
            ids = [step_record_id(run.id, name) for name in missing]
            found = await self._tools.store.find_records(Kind.STEP, self._tenant, ids)
            for name, one in zip(missing, found, strict=True):
                steps.known[name] = None if one is None else step_of(one)

    async def _finish(self, graph: Graph, first: Advance, steps: _Steps, fence: int) -> Run:
        """Carry out the commands, and tell the run of those that came to an end at once."""
        run, commands, said, changed = first.run, first.commands, list(first.notes), first.changed
        steps.take(first)
        while ended := await self._carry_out(run, commands):
            more = await self._advanced(graph, run, steps, ended)
            run, commands = more.run, more.commands
            said += more.notes
            changed |= more.changed
            steps.take(more)
        if not changed:
            return run
        written = replace(run, fence=max(fence, run.fence))
        self._write(written, steps, said)
        self.steps_after = steps.after()
        return replace(written, version=written.version + 1)

    def _write(self, run: Run, steps: _Steps, said: Sequence[Said]) -> None:
        self._records += [
            *(
                RecordChange(after=step_record(step), replaces=step.version, remove=True)
                for step in steps.removed.values()
            ),
            RecordChange(after=run_record(run), replaces=run.version),
            *(RecordChange(after=step_record(step), replaces=step.version) for step in steps.changed.values()),
        ]
        self._notes += [
            Note(self._tenant, JobId(""), kind, {**detail, "fence": run.fence}, run.id) for kind, detail in said
        ]

    # -- commands: each returns how it ended, if it has ended already --------------------------------

    async def _carry_out(self, run: Run, commands: Sequence[Command]) -> list[Happening]:
        ended: list[Happening] = []
        for command in commands:
            try:
                ended += await self._carry_out_one(run, command)
            except (Invalid, NotFound) as error:
                ended += _failed(command, error)
        return ended

    async def _carry_out_one(self, run: Run, command: Command) -> Sequence[Happening]:
        match command:
            case SubmitJob():
                return self._submit(run, command)
            case CancelJob():
                return await self._cancel_job(command)
            case AskApproval():
                return self._ask(run, command)
            case WithdrawApproval():
                return await self._withdraw(run, command)
            case StartRun():
                return await self._start(run, command)
            case CancelRun():
                wish = CancelWish(f"run {run.id}", command.reason, command.compensate)
                return self._leave(command.run, f"{command.run}.cancel", About.CANCEL, wish)
            case Notify():
                return await self._notify(run, command)
            case TellParent():
                output = msgspec.Raw(command.output or b"null")
                result = ChildResult(command.step, command.state, output, command.error)
                return self._leave(command.run, command.child, About.RUN, result)
            case never:
                assert_never(never)

    def _submit(self, run: Run, command: SubmitJob) -> Sequence[Happening]:
        submission = self._tools.submitter.prepare(
            Order(
                tenant=self._tenant,
                topic=command.topic,
                payload=command.payload,
                labels=command.labels,
                priority=command.priority,
                risk=command.risk,
                max_attempts=command.max_attempts,
                timeout_s=None if command.deadline is None else command.deadline - self._now,
                actor=run.actor,
                session=command.session,
                run=run.id,
                step=command.step,
                job_id=JobId(command.job),
            )
        )
        job = submission.job
        self._submissions[job.id] = submission
        # Denied at once: told now. The result that the store leaves of it is no news then.
        return [JobEnded(command.step, job.id, job.state, job.result, job.error)] if job.is_terminal else []

    async def _cancel_job(self, command: CancelJob) -> Sequence[Happening]:
        error = {"code": "cancelled", "message": command.reason}
        if self._submissions.pop(command.job, None) is not None:
            return [JobEnded(command.step, command.job, State.CANCELLED, None, error)]
        [job] = await self._tools.store.find_jobs([JobId(command.job)])
        if job is None:
            return [JobEnded(command.step, command.job, State.CANCELLED, None, error)]
        if may(job, Event.CANCEL) and not job.cancel_requested:
            change = cancelling(job, command.reason, now=self._now)
            [stopping] = await followed([change], store=self._tools.store)
            self._changes += stopping.changes
            self._records += stopping.records
            self._notes += stopping.notes
        return []

    def _ask(self, run: Run, command: AskApproval) -> Sequence[Happening]:
        terms = Terms(
            approvers=tuple(command.approvers),
            quorum=command.quorum,
            separate=command.separate,
            message=command.message,
            expires_s=EXPIRES_S if command.expires_s is None else command.expires_s,
        )
        approval = ask_step(
            command.approval,
            terms,
            tenant=self._tenant,
            run=run.id,
            step=command.step,
            arguments=msgspec.json.decode(command.payload),
            requested_by=run.actor,
            labels=run.labels,
            now=self._now,
        )
        self.keep(approval_record(approval))
        detail = {"approval": approval.id, "step": command.step, "expires_at": approval.expires_at}
        self._notes.append(Note(self._tenant, JobId(""), "approval.requested", detail, run.id))
        return []

    async def _withdraw(self, run: Run, command: WithdrawApproval) -> Sequence[Happening]:
        [record] = await self._tools.store.find_records(Kind.APPROVAL, self._tenant, [command.approval])
        approval = None if record is None else approval_of(record)
        if approval is not None and approval.state is ApprovalState.PENDING:
            ended = end_approval(approval, ApprovalState.SUPERSEDED, why=command.reason, now=self._now)
            self._records.append(RecordChange(after=approval_record(ended), replaces=approval.version))
            detail = {"approval": approval.id, "step": command.step, "reason": command.reason}
            self._notes.append(Note(self._tenant, JobId(""), "approval.superseded", detail, run.id))
        return []

    async def _start(self, run: Run, command: StartRun) -> Sequence[Happening]:
        revision, graph = await self._tools.workflows.choose(self._tenant, command.workflow, command.revision)
        new = NewRun(
            id=command.run,
            tenant=self._tenant,
            revision=revision,
            input=graph.bind_input(msgspec.json.decode(command.input)),
            actor=run.actor,
            session=run.session,
            labels=run.labels,
            parent_run=run.id,
            parent_step=command.step,
            depth=command.depth,
            deadline=command.deadline,
        )
        await self.begin(graph, new)
        return []

    async def _notify(self, run: Run, command: Notify) -> Sequence[Happening]:
        """Done when it is written down: from then on the post is somebody's duty, and no step waits for it."""
        webhook = webhook_from(await self._tools.store.get_record(Kind.WEBHOOK, self._tenant, command.webhook))
        data = {"run": run.id, "step": command.step, "payload": msgspec.json.decode(command.payload)}
        self.keep(post_to(webhook, "step.notified", data, key=command.post, now=self._now))
        return [NotifySent(command.step, command.post, None)]

    def _leave(self, run: str, record_id: str, about: About, body: msgspec.Struct) -> Sequence[Happening]:
        """A word to another run, which it finds as it finds the ends of its jobs."""
        self.keep(
            Record(
                kind=Kind.RESULT,
                tenant=self._tenant,
                id=record_id,
                state=about,
                parent=run,
                due=self._now,
                created_at=self._now,
                body=msgspec.json.encode(body),
            )
        )
        return []


class _Steps:
    """The steps of one run that are known here, and what became of them."""

    def __init__(self, *, whole: bool = False, known: Mapping[str, Step | None] | None = None) -> None:
        self.known: dict[str, Step | None] = dict(known or ())
        self.whole = whole
        """All that there are is known."""
        self.changed: dict[str, Step] = {}
        self.removed: dict[str, Step] = {}

    def after(self) -> dict[str, Step | None]:
        written: dict[str, Step | None] = {
            name: replace(step, version=step.version + 1) for name, step in self.changed.items()
        }
        # Of a wide fan-out only what is new: most of its parts are never asked for again.
        kept = written if len(self.known) > REMEMBERED_MAX else self.known | written
        small = ((name, step) for name, step in kept.items() if step is None or _size(step) <= REMEMBERED_BYTES)
        return dict(itertools.islice(small, REMEMBERED_MAX))

    def take(self, more: Advance) -> None:
        for step in more.removed:
            self.changed.pop(step.name, None)
            self.known[step.name] = None
            if step.version:
                self.removed[step.name] = step
        for name, step in more.steps.items():
            self.changed[name] = self.known[name] = step
            if step.version:
                self.removed.pop(name, None)


def _size(step: Step) -> int:
    return len(bytes(step.output)) + len(bytes(step.item))


def _failed(command: Command, error: HoldfastError) -> Sequence[Happening]:
    """What cannot even begin has ended: the step fails, the run goes on as its definition says."""
    why = {"code": error.code, "message": str(error)}
    match command:
        case SubmitJob():
            return [JobEnded(command.step, command.job, State.FAILED, None, why)]
        case AskApproval():
            return [ApprovalDecided(command.step, command.approval, "rejected", why)]
        case StartRun():
            return [ChildRunEnded(command.step, command.run, RunState.FAILED, None, why)]
        case Notify():
            return [NotifySent(command.step, command.post, why)]
        case _:
            raise error
