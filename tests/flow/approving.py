"""Approvals on a stage: a policy that asks for them, people who decide, and what must hold of all of them (A1 to A3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from locks.virtual import VirtualRuntime

from flow.plane_invariants import check_plane
from flow.stage import ACME, Replica, Stage, staged
from holdfast.approvals import ApprovalTimer
from holdfast.core.approval import Approval, ApprovalState, digest_of, from_record
from holdfast.core.decision import Choice, Decision
from holdfast.core.job import Job
from holdfast.core.policy import Rulebook
from holdfast.core.record import Kind
from holdfast.core.states import State
from holdfast.core.topic import Topics
from holdfast.flow.approve import Approvals, Said


def rules(*, action: str = "require_approval", topic: str = "pay*", **approval: Any) -> dict[str, Any]:
    """A policy that asks about payouts and allows the rest."""
    rule: dict[str, Any] = {"name": "payouts", "match": {"topic": topic}, "action": action, "reason": "money moves"}
    if action == "require_approval":
        rule["approval"] = approval
    return {"format": 1, "default": {"action": "allow"}, "rules": [rule]}


class Published:
    """The policy in force, until another one is published."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.book = Rulebook(1, document)

    @property
    def version(self) -> int:
        return self.book.version

    def decide(self, job: Job) -> Decision:
        return self.book.decide(job)

    def publish(self, document: dict[str, Any]) -> None:
        self.book = Rulebook(self.book.version + 1, document)


@dataclass
class Desk:
    """A stage on which payouts need an approval, and the people who decide."""

    stage: Stage
    policy: Published
    people: Approvals
    timer: ApprovalTimer

    def elsewhere(self, replica: Replica) -> Approvals:
        """The same people at another gateway."""
        return approvals_of(replica)

    async def pay(self, topic: str = "pay", **order: Any) -> Job:
        return await self.stage.submit(topic, **{"actor": "rita", "payload": b'{"to":"ann","amount":5}', **order})

    async def approval(self, job: Job) -> Approval:
        """The job's, as it is now."""
        now = await self.stage.job(job.id)
        return await self.people.get(ACME, now.approval)

    async def say(self, job: Job, by: str = "ann", choice: Choice = Choice.APPROVE, **said: Any) -> Approval:
        approval = await self.approval(job)
        return await self.people.decide(ACME, approval.id, Said(by=by, choice=choice, **said))

    async def approved(self, **order: Any) -> Job:
        """A payout that is approved, and that nobody has dispatched."""
        job = await self.pay(**order)
        await self.say(job)
        return await self.stage.job(job.id)

    async def all(self) -> list[Approval]:
        found = await self.stage.inner.list_records(Kind.APPROVAL, ACME, limit=1000)
        return [from_record(record) for record in found]

    async def check(self, *, all_ended: bool = True) -> None:
        await check_plane(self.stage, all_ended=all_ended)
        await check_approvals(self.stage, await self.all())


@asynccontextmanager
async def deciding(
    runtime: VirtualRuntime,
    document: dict[str, Any] | None = None,
    *,
    topics: Topics | None = None,
    detached: bool = False,
) -> AsyncIterator[Desk]:
    policy = Published(document or rules())
    async with staged(runtime, policy=policy, topics=topics, detached=detached) as stage:
        people = approvals_of(stage)
        yield Desk(stage, policy, people, ApprovalTimer(store=stage.typed_store, approvals=people, runtime=runtime))


def approvals_of(replica: Replica) -> Approvals:
    return Approvals(
        store=replica.typed_store,
        locks=replica.locks,
        topics=replica.topics,
        policy=replica.policy,
        telemetry=replica.telemetry,
    )


async def check_approvals(stage: Stage, approvals: list[Approval]) -> None:
    events = stage.seen.events
    decided = Counter(event.detail["approval"] for event in events if event.kind == "approval.decided")
    assert all(count == 1 for count in decided.values()), f"A1: decided more than once: {decided}"
    by_id = {approval.id: approval for approval in approvals}
    for approval in approvals:
        assert (approval.verdict is None) == (approval.state is ApprovalState.PENDING), f"A1: {approval.id}"
        if approval.terms.separate and approval.verdict is not None:
            assert approval.verdict.by != approval.requested_by, f"A3: {approval.id}"
    jobs = {job.id: job for job in await stage.inner.find_jobs([approval.job_id for approval in approvals]) if job}
    begun: Counter[str] = Counter()
    last: dict[str, str] = {}
    for event in events:
        if event.kind == "job.dispatched":
            last[event.job_id] = event.detail.get("approval", "")
        elif event.kind == "job.started" and event.job_id in jobs:
            begun[last[event.job_id]] += 1
            assert last[event.job_id], f"A2: {event.job_id} was begun without an approval"
    assert all(count == 1 for count in begun.values()), f"A2: used for more than one attempt: {begun}"
    for used in begun:
        approval = by_id[used]
        assert approval.state is ApprovalState.CONSUMED, f"A2: {used} was used and is {approval.state}"
        assert approval.digest == digest_of(jobs[approval.job_id], approval.policy), (
            f"A2: {used} is about something else"
        )
    for approval in approvals:
        waits = jobs[approval.job_id].state is State.APPROVAL_REQUIRED and jobs[approval.job_id].approval == approval.id
        assert waits == (approval.state is ApprovalState.PENDING), f"{approval.id} is {approval.state}; waits: {waits}"
