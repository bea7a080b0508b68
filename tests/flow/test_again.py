"""Again: dead letters replayed and jobs retried. Row 106."""

from __future__ import annotations

import asyncio

from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import Stage, staged
from holdfast.core.audit import Act
from holdfast.core.job import Job
from holdfast.core.states import Event, State
from holdfast.flow.again import replay, retry
from holdfast.flow.audit import Audit, Entry
from holdfast.flow.decide import Decision
from holdfast.flow.record import End
from holdfast.ports import Accepted


class Changing:
    """A policy that is another one tomorrow."""

    version = 1

    def __init__(self) -> None:
        self.decision = Decision(Event.ALLOW)

    def decide(self, job: Job) -> Decision:
        return self.decision


async def given_up(stage: Stage) -> Job:
    attempt = await stage.begun(payload=b'{"n":1}', labels={"team": "red"})
    await stage.complete(attempt, End.FAILED, retryable=False)
    return await stage.job(attempt.id)


@on_virtual_time
async def test_double_click_is_one_job(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        dead = await given_up(stage)

        async def click() -> Accepted:
            return await replay(dead.tenant, 1, store=stage.inner, submitter=stage.submitter)

        clicks = await asyncio.gather(*(click() for _ in range(5)))
        by_id = await retry(dead.tenant, dead.id, store=stage.inner, submitter=stage.submitter)

        assert {accepted.job.id for accepted in (*clicks, by_id)} == {clicks[0].job.id}
        assert sum(not accepted.repeated for accepted in (*clicks, by_id)) == 1
        again = await stage.job(clicks[0].job.id)
        assert (again.payload, again.labels, again.replay_of) == (dead.payload, dead.labels, dead.id)


@on_virtual_time
async def test_replay_is_decided_by_the_policy_of_today(runtime: VirtualRuntime) -> None:
    policy = Changing()
    async with staged(runtime, policy=policy) as stage:
        dead = await given_up(stage)
        policy.decision = Decision(Event.DENY, "not any more")

        accepted = await replay(dead.tenant, 1, store=stage.inner, submitter=stage.submitter)

        denied = await stage.job(accepted.job.id)
        assert (denied.state, denied.error) == (State.DENIED, {"code": "denied", "message": "not any more"})
        assert await stage.dispatch(denied) != "sent"


@on_virtual_time
async def test_who_wants_it_again_is_who_asks_for_it(runtime: VirtualRuntime) -> None:
    """Else whoever retried a job of somebody else could approve it, too."""
    async with staged(runtime) as stage:
        dead = await given_up(stage)
        audit = Audit(stage.inner, runtime)
        entry = Entry(audit, Act(tenant=dead.tenant, action="job.retried", subject=f"job/{dead.id}", by="bob"))
        again = await retry(dead.tenant, dead.id, store=stage.inner, submitter=stage.submitter, entry=entry)

        assert (dead.actor, again.job.actor) == ("", "bob")
