"""A transaction in the making: all that one advance of a run writes, together with what it starts and stops.

The core says what is to happen, as commands. Here each becomes a part of the same transaction as the
run's next version: the jobs it submits, the approvals it asks for, the runs within it. So nothing of
it can be lost or happen twice, whenever the engine dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.advance import advance, begin, needed
from holdfast.core.approval import ApprovalState, Terms, ask_step
from holdfast.core.approval import end as end_approval
from holdfast.core.approval import from_record as approval_of
from holdfast.core.approval import to_record as approval_record
from holdfast.core.decision import CHOICES, EXPIRES_S
from holdfast.core.job import JobId, Tenant, may
from holdfast.core.record import Kind, Record
from holdfast.core.run import Run, Step, run_record, step_record
from holdfast.core.run_result import About, CancelWish, ChildResult, StopWish, TurnWord, not_begun
from holdfast.core.run_session import Seat, has_seat
from holdfast.core.run_words import (
    Advance,
    AskApproval,
    CancelJob,
    CancelRun,
    Command,
    Draw,
    Happening,
    JobEnded,
    NewRun,
    Notify,
    NotifySent,
    RerunAsked,
    Said,
    StartRun,
    SubmitJob,
    TellParent,
    WithdrawApproval,
)
from holdfast.core.states import Event, State
from holdfast.core.webhook import post_to, webhook_from
from holdfast.core.workflow_graph import Graph
from holdfast.errors import Invalid, NotFound
from holdfast.flow.admission import RunRoom, count_live_runs
from holdfast.flow.cancel import cancelling
from holdfast.flow.gate import followed
from holdfast.flow.run_session import find_session
from holdfast.flow.run_steps import KnownSteps
from holdfast.flow.run_tools import Tools
from holdfast.flow.submit import Order, new_id
from holdfast.ports import Change, Note, RecordChange, Submission, Transaction

CANCELS_MAX = 8
"""Jobs that are told to stop in the very transaction that wants it. More are told by whoever finds the wish."""
STOPS_MAX = 100


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
        self._runs_started = 0
        self.steps_after: dict[str, Step | None] = {}
        """Of the run that was advanced last: steps as they are once this is written; None: there is none."""

    async def begin(self, graph: Graph, new: NewRun, *, fence: int = 0) -> Run:
        """A new run, and what it begins with."""
        self._runs_started += 1
        first = begin(graph, new, now=self._now, draw=self._draw, room=await self._find_room(graph))
        return await self._finish(graph, first, KnownSteps(outline={}), fence)

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
        joins = None
        if run.session and run.is_terminal and any(isinstance(one, RerunAsked) for one in happenings):
            joins = await find_session(run.tenant, run.session, store=self._tools.store)
            is_busy = bool(joins.seats)
            happenings = [one._replace(queued=is_busy) if isinstance(one, RerunAsked) else one for one in happenings]
        steps = KnownSteps(known=known)
        await steps.load(run, needed(graph, run, happenings), store=self._tools.store)
        after = await self._finish(graph, await self._advanced(graph, run, steps, happenings), steps, fence)
        if joins is not None and after.generation > run.generation:
            self.change(RecordChange(after=joins.joined(after), replaces=joins.version))
        elif after.is_terminal and not run.is_terminal and has_seat(run):
            await self._leave_session(after)
        return after

    def consume(self, records: Iterable[Record]) -> None:
        """These are taken away with it: it knows of them from now on."""
        self._records += [RecordChange(after=record, replaces=record.version, remove=True) for record in records]

    def end(self, ends: Iterable[Change]) -> None:
        """Jobs end with it: the run hears of them by nothing else."""
        self._changes += [replace(change, heard=True) for change in ends]

    def keep(self, record: Record) -> None:
        """A new record that must not be there yet."""
        self._records.append(RecordChange(after=record, replaces=0))

    def change(self, change: RecordChange) -> None:
        self._records.append(change)

    def stop(self, seat: Seat, *, by: str, compensate: bool) -> None:
        """Tell another run to stop; not one that has ended, and was run again, by the time it hears of it."""
        wish = CancelWish(by, "a newer run of its session took its place", compensate, seat.generation)
        self._leave(seat.run, f"{seat.run}.cancel.{seat.generation}", About.CANCEL, wish)

    def transaction(self) -> Transaction:
        return Transaction(
            submissions=list(self._submissions.values()),
            changes=self._changes,
            records=self._records,
            notes=self._notes,
        )

    # ----------------------------------------------------------------------------------------------

    async def _advanced(self, graph: Graph, run: Run, steps: KnownSteps, happenings: Sequence[Happening]) -> Advance:
        room = await self._find_room(graph)
        while True:
            answer = advance(
                graph,
                run,
                steps.known,
                happenings,
                outline=steps.outline,
                now=self._now,
                draw=self._draw,
                room=room,
            )
            if isinstance(answer, Advance):
                return answer
            await steps.load(run, answer, store=self._tools.store)

    async def _find_room(self, graph: Graph) -> RunRoom:
        tools, admission = self._tools, self._tools.submitter.admission
        await admission.count()
        runs = 0
        if graph.has_runs:
            # Those that this very transaction starts are not there yet.
            runs = self._runs_started + await count_live_runs(self._tenant, store=tools.store)
        return RunRoom(admission, self._tenant, runs=runs, live_runs_max=tools.live_runs_max)

    async def _finish(self, graph: Graph, first: Advance, steps: KnownSteps, fence: int) -> Run:
        """Carry out the commands, and tell the run of those that came to an end at once."""
        run, commands, said, changed = first.run, first.commands, list(first.notes), first.changed
        steps.take(first)
        while ended := await self._try_carry_out(run, commands):
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

    def _write(self, run: Run, steps: KnownSteps, said: Sequence[Said]) -> None:
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

    async def _leave_session(self, run: Run) -> None:
        """Whose turn it is now is told so with the very end of the run: a crash after it is no more than a delay."""
        session = await find_session(run.tenant, run.session, store=self._tools.store)
        self.change(RecordChange(after=session.left(run), replaces=session.version))
        following = session.next_after(run)
        if following is not None:
            word = TurnWord(following.generation)
            self._leave(following.run, f"{following.run}.turn.{following.generation}", About.TURN, word)

    # -- commands: each returns how it ended, if it has ended already --------------------------------

    async def _try_carry_out(self, run: Run, commands: Sequence[Command]) -> list[Happening]:
        try:
            return await self._carry_out(run, commands)
        except Exception:
            await self._tools.withdraw([self.transaction()])
            raise

    async def _carry_out(self, run: Run, commands: Sequence[Command]) -> list[Happening]:
        ended: list[Happening] = []
        cancels = [one for one in commands if isinstance(one, CancelJob) and one.job not in self._submissions]
        if len(cancels) > CANCELS_MAX:
            # Each would have to be at the version that was read, or the run could not go on: and leases are renewed.
            commands = [one for one in commands if one not in cancels]
            for n in range(0, len(cancels), STOPS_MAX):
                some = cancels[n : n + STOPS_MAX]
                wish = StopWish(tuple(one.job for one in some), some[0].reason)
                self._leave(run.id, f"{some[0].job}.stop", About.STOP, wish)
        for command in commands:
            try:
                ended += await self._carry_out_one(run, command)
            except (Invalid, NotFound) as error:
                ended += not_begun(command, error)
        return ended

    async def _carry_out_one(self, run: Run, command: Command) -> Sequence[Happening]:
        match command:
            case SubmitJob():
                return await self._submit(run, command)
            case CancelJob():
                return await self._cancel_job(command)
            case AskApproval():
                return self._ask(run, command)
            case WithdrawApproval():
                return await self._withdraw(run, command)
            case StartRun():
                return await self._start(run, command)
            case CancelRun():
                # As it was started: run again since, it has told how it ended, and is nobody's part any more.
                wish = CancelWish(f"run {run.id}", command.reason, command.compensate, generation=0)
                return self._leave(command.run, f"{command.run}.cancel", About.CANCEL, wish)
            case Notify():
                return await self._notify(run, command)
            case TellParent():
                output = msgspec.Raw(command.output or b"null")
                result = ChildResult(command.step, command.state, output, command.error)
                return self._leave(command.run, command.child, About.RUN, result)
            case never:
                assert_never(never)

    async def _submit(self, run: Run, command: SubmitJob) -> Sequence[Happening]:
        submission = await self._tools.submitter.prepare(
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
        taken_back = self._submissions.pop(command.job, None)
        if taken_back is not None:
            await self._tools.submitter.withdraw([taken_back.job])
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
            choices=command.choices or CHOICES,
            response_schema=command.response_schema,
            expires_s=EXPIRES_S if command.expires_s is None else command.expires_s,
        )
        approval = ask_step(
            command.approval,
            terms,
            tenant=self._tenant,
            run=run.id,
            step=command.step,
            arguments=msgspec.json.decode(command.payload),
            effect_preview=command.effect_preview,
            requested_by=run.actor,
            labels=run.labels,
            now=self._now,
        )
        self.keep(approval_record(approval))
        detail = {"approval": approval.id, "step": command.step, "expires_at": approval.expires_at}
        self._notes.append(Note(self._tenant, JobId(""), "approval.requested", detail, run.id))
        return []

    async def _withdraw(self, run: Run, command: WithdrawApproval) -> Sequence[Happening]:
        asked = [one for one in self._records if one.after.kind is Kind.APPROVAL and one.after.id == command.approval]
        # One that this very transaction asks for is not in the store yet, and is never open to anybody.
        found = [one.after for one in asked] or await self._tools.store.find_records(
            Kind.APPROVAL, self._tenant, [command.approval]
        )
        approval = None if found[0] is None else replace(approval_of(found[0]), version=found[0].version - len(asked))
        if approval is not None and approval.state is ApprovalState.PENDING:
            ended = end_approval(approval, ApprovalState.SUPERSEDED, why=command.reason, now=self._now)
            self._records = [one for one in self._records if one not in asked]
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
