"""Again: dead letters replayed and jobs retried. Row 106."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import Stage, staged
from holdfast.core.audit import Act
from holdfast.core.job import Job
from holdfast.core.states import Event, State
from holdfast.errors import TooMany
from holdfast.flow.again import replay, retry
from holdfast.flow.audit import Audit, Entry, list_lines
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


async def given_up(stage: Stage, **order: Any) -> Job:
    attempt = await stage.begun(payload=b'{"n":1}', labels={"team": "red"}, **order)
    await stage.complete(attempt, End.FAILED, retryable=False)
    return await stage.job(attempt.id)


def entry_of(stage: Stage, dead: Job) -> Entry:
    """The line of a person who wants it again."""
    act = Act(tenant=dead.tenant, action="job.retried", subject=f"job/{dead.id}", by="bob")
    return Entry(Audit(stage.inner, stage.runtime), act)


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
        again = await retry(
            dead.tenant, dead.id, store=stage.inner, submitter=stage.submitter, entry=entry_of(stage, dead)
        )

        assert (dead.actor, again.job.actor) == ("", "bob")


@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("verb", ["retry", "replay"])
@on_virtual_time
async def test_job_of_a_session_waits_its_turn_there_when_it_is_wanted_again(
    runtime: VirtualRuntime, verb: str, *, audited: bool
) -> None:
    async with staged(runtime) as stage:
        dead = await given_up(stage, session="chat")
        live = await stage.begun("w2", session="chat")
        entry = entry_of(stage, dead) if audited else None
        tools: dict[str, Any] = {"store": stage.inner, "submitter": stage.submitter, "entry": entry}
        wanted = retry(dead.tenant, dead.id, **tools) if verb == "retry" else replay(dead.tenant, 1, **tools)
        again = await wanted

        assert (again.job.session, again.repeated) == ("chat", False)
        assert {job.id for job in await stage.inner.list_session(dead.tenant, "chat")} == {live.id, again.job.id}
        assert await stage.inner.list_dispatchable(limit=10) == []
        await stage.complete(live)
        assert [job.id for job in await stage.inner.list_dispatchable(limit=10)] == [again.job.id]


@on_virtual_time
async def test_at_its_limit_a_tenant_is_given_the_job_of_the_first_time_and_no_other(runtime: VirtualRuntime) -> None:
    async with staged(runtime, live_jobs_max=2) as stage:
        dead = []
        for _ in range(3):
            dead.append(await given_up(stage))
            await asyncio.sleep(1.1)  # counted anew: it has ended
        retried, replayed, neither = dead
        tools: dict[str, Any] = {"store": stage.inner, "submitter": stage.submitter}
        for repeated in (False, True):
            entry = entry_of(stage, retried)
            first = await retry(retried.tenant, retried.id, **tools, entry=entry)
            second = await replay(replayed.tenant, 2, **tools, entry=entry_of(stage, replayed))
            assert (first.repeated, second.repeated) == (repeated, repeated)
        with pytest.raises(TooMany):
            await retry(neither.tenant, neither.id, **tools, entry=entry_of(stage, neither))
        with pytest.raises(TooMany):
            await replay(neither.tenant, 3, **tools)
        assert len(await list_lines(retried.tenant, store=stage.inner, limit=10)) == 2
