"""Decide: what the policy's word makes of a job, at its submission and afterwards."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import ACME, Stage, staged
from flow.telling import undelivered
from holdfast.core.decision import demand_of
from holdfast.core.policy import Rulebook
from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind
from holdfast.core.schema import compile_schema
from holdfast.core.states import Risk, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Invalid, KeyInFlight, KeyReused, SessionBusy, TooMany
from holdfast.flow.admission import COUNT_FRESH_S
from holdfast.flow.cancel import cancel
from holdfast.flow.decide import AllowAll, LivePolicy
from holdfast.flow.recover import recover_jobs
from holdfast.flow.session import SessionPolicy
from holdfast.flow.submit import Order
from holdfast.flow.throttle import forget_rates
from holdfast.ports import Accepted
from holdfast.telemetry import Telemetry

PENDING_S = Topic(name="").pending_timeout_s


def rulebook(*rules: dict[str, Any], default: str = "allow", version: int = 3, **more: Any) -> Rulebook:
    named = [{"name": f"r{n}", **rule} for n, rule in enumerate(rules)]
    return Rulebook(version, {"format": 1, "rules": named, "default": {"action": default}, **more})


def under(key: str) -> Order:
    return Order(tenant=ACME, topic="mail.send", payload=b"{}", labels={}, key=key)


async def recover_all(stage: Stage, policy: LivePolicy) -> None:
    jobs, _ = await stage.inner.list_recoverable(states=[State.PENDING], limit=100)
    await recover_jobs(jobs, store=stage.inner, topics=stage.topics, policy=policy, telemetry=stage.telemetry)


@undelivered
@on_virtual_time
async def test_an_allowed_job_keeps_the_decision(runtime: VirtualRuntime) -> None:
    policy = rulebook({"match": {"topic": "mail.*"}, "action": "allow", "reason": "everybody may"})
    async with staged(runtime, policy=policy) as stage:
        job = await stage.job((await stage.submit()).id)

        expected = {"action": "allow", "rule": "r0", "policy": 3, "hash": policy.hash[:16], "reason": "everybody may"}
        assert (job.state, job.decision) == (State.SCHEDULED, expected)


@undelivered
@on_virtual_time
async def test_a_denied_job_is_kept_with_its_reason(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=rulebook({"action": "deny", "reason": "not on Fridays"})) as stage:
        job = await stage.job((await stage.submit()).id)

        assert (job.state, job.error) == (State.DENIED, {"code": "denied", "message": "not on Fridays"})


@undelivered
@on_virtual_time
async def test_a_job_that_needs_an_approval_demands_it(runtime: VirtualRuntime) -> None:
    rule = {"action": "require_approval", "approval": {"approvers": ["alice"], "quorum": 1}}
    async with staged(runtime, policy=rulebook(rule)) as stage:
        job = await stage.job((await stage.submit()).id)
        demand = demand_of(job)

        assert job.state is State.APPROVAL_REQUIRED
        assert demand is not None
        assert demand.approvers == ["alice"]


@undelivered
@on_virtual_time
async def test_constraints_are_the_jobs_own_limits(runtime: VirtualRuntime) -> None:
    bounds = {"max_attempts": 1, "priority_max": 0, "timeout_s": 60}
    async with staged(runtime, policy=rulebook({"action": "allow", "constraints": bounds})) as stage:
        job = await stage.job((await stage.submit(priority=9, max_attempts=5)).id)

        assert (job.max_attempts, job.priority, job.deadline) == (1, 0, job.created_at + 60)


@undelivered
@on_virtual_time
async def test_a_rate_holds_and_tells_when_to_come_back(runtime: VirtualRuntime) -> None:
    limits = {"rate": "2/s", "burst": 3, "per": "tenant"}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        for _ in range(3):
            await stage.order()
        with pytest.raises(TooMany) as refused:
            await stage.order()
        assert refused.value.retry_after_s == pytest.approx(0.5)
        await asyncio.sleep(0.5)
        await stage.order()
        with pytest.raises(TooMany):
            await stage.order()

        assert "rule r0" in str(refused.value)


@undelivered
@on_virtual_time
async def test_a_repeated_request_is_answered_though_the_rate_is_used_up(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 1}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        first = await stage.order(key="k")
        assert (await stage.order(key="k")).job.id == first.job.id
        with pytest.raises(TooMany):
            await stage.order(key="another")


@undelivered
@on_virtual_time
async def test_a_repeated_request_takes_nothing_from_the_rate(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 2}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        first = await stage.order(key="k")

        again, another, one_too_many = await stage.submitter.submit([under(key) for key in ("k", "another", "more")])

        assert again == Accepted(first.job, repeated=True)
        assert isinstance(another, Accepted)
        assert isinstance(one_too_many, TooMany)


@undelivered
@on_virtual_time
async def test_a_request_that_is_refused_for_something_else_takes_nothing_from_the_rate(
    runtime: VirtualRuntime,
) -> None:
    limits = {"rate": "1/m", "burst": 2}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        first, in_flight, another = await stage.submitter.submit([under(key) for key in ("k", "k", "another")])

        assert isinstance(in_flight, KeyInFlight)
        assert all(isinstance(taken, Accepted) for taken in (first, another))


@undelivered
@on_virtual_time
async def test_a_request_that_the_store_refuses_takes_nothing_from_the_rate(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 2}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        await stage.order(key="k", session="s")

        for _ in range(3):
            with pytest.raises(KeyReused):
                await stage.order("mail.other", key="k")
            with pytest.raises(SessionBusy):
                await stage.order(session="s", session_policy=SessionPolicy.REJECT)

        await stage.order()
        with pytest.raises(TooMany):
            await stage.order()


@undelivered
@on_virtual_time
async def test_a_job_that_its_tenant_has_no_room_for_takes_nothing_from_the_rate(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 2}
    policy = rulebook({"action": "throttle", "throttle": limits})
    async with staged(runtime, policy=policy, live_jobs_max=1) as stage:
        job = await stage.submit()
        for n in range(3):
            with pytest.raises(TooMany, match="unfinished jobs"):
                await stage.submitter.admit(under(f"k{n}"))
        await cancel(ACME, job.id, "", store=stage.inner)
        await asyncio.sleep(COUNT_FRESH_S)

        await stage.submitter.admit(under("k"))


@undelivered
@on_virtual_time
async def test_a_rate_over_a_long_time_is_exact(runtime: VirtualRuntime) -> None:
    """Asked twenty times a second for a minute: the burst, and one every half second."""
    limits = {"rate": "120/m", "burst": 4}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        admitted = 0
        for _ in range(1200):
            try:
                await stage.order()
            except TooMany:
                pass
            else:
                admitted += 1
            await asyncio.sleep(0.05)

        assert admitted in (4 + 119, 4 + 120)


@undelivered
@on_virtual_time
async def test_one_tenants_rate_is_not_anothers(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/h"}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        await stage.order()
        await stage.order(tenant=type(ACME)("other"))
        with pytest.raises(TooMany):
            await stage.order()


@undelivered
@on_virtual_time
async def test_keys_whose_time_has_come_are_forgotten(runtime: VirtualRuntime) -> None:
    limits = {"rate": "1/m", "burst": 5, "per": "topic"}
    async with staged(runtime, policy=rulebook({"action": "throttle", "throttle": limits})) as stage:
        for n in range(3):
            await stage.order(f"mail.{n}")
        await asyncio.sleep(30)
        await stage.order("mail.2")
        assert len(await stage.inner.list_records(Kind.RATE, PLANE, limit=10)) == 3
        await asyncio.sleep(31)

        await forget_rates(stage.inner)

        assert len(await stage.inner.list_records(Kind.RATE, PLANE, limit=10)) == 1


@undelivered
@on_virtual_time
async def test_while_no_policy_was_read_jobs_wait_and_are_asked_about_again(runtime: VirtualRuntime) -> None:
    telemetry = Telemetry()
    live = LivePolicy(telemetry, runtime)
    async with staged(runtime, policy=live) as stage:
        submitted = await stage.submit()
        assert submitted.state is State.PENDING
        await asyncio.sleep(PENDING_S)
        await recover_all(stage, live)
        assert (await stage.job(submitted.id)).version == submitted.version, "nothing new is not written"
        live.use(rulebook(), now=stage.inner.now())
        await recover_all(stage, live)

        job = await stage.job(submitted.id)
        assert (job.state, (job.decision or {})["rule"]) == (State.SCHEDULED, "default")
        assert (await stage.kinds(job.id))[-1] == "job.decided"


@undelivered
@on_virtual_time
async def test_a_policy_that_hangs_fails_by_risk_and_is_counted(runtime: VirtualRuntime) -> None:
    """The clock jumps by more than the time-out from one look to the next."""
    slow, looks = copy.copy(runtime), itertools.count()
    slow.now = lambda: float(next(looks))  # type: ignore[method-assign]
    telemetry = Telemetry()
    live = LivePolicy(telemetry, slow)
    rule = {"when": "payload.n > 1", "action": "deny", "reason": "too many"}
    live.use(rulebook(rule, on_failure={"low": "open"}), now=0.0)
    async with staged(runtime, policy=live) as stage:
        careful = await stage.job((await stage.submit(payload=b'{"n":5}', risk=Risk.HIGH)).id)
        careless = await stage.job((await stage.submit(payload=b'{"n":5}', risk=Risk.LOW)).id)

        assert (careful.state, (careful.decision or {})["action"]) == (State.PENDING, "wait")
        assert (careless.state, (careless.decision or {})["failed"]) == (State.SCHEDULED, "open")
        failures = "holdfast_policy_failures_total"
        assert telemetry.registry.get_sample_value(failures, {"risk": "high", "mode": "closed"}) == 1
        assert telemetry.registry.get_sample_value(failures, {"risk": "low", "mode": "open"}) == 1


@undelivered
@on_virtual_time
async def test_without_a_policy_nothing_is_recorded(runtime: VirtualRuntime) -> None:
    live = LivePolicy(Telemetry(), runtime)
    live.use(AllowAll(), now=0.0)
    async with staged(runtime, policy=live) as stage:
        job = await stage.submit()

        assert (job.state, job.decision) == (State.SCHEDULED, None)


@undelivered
@on_virtual_time
async def test_a_topics_schema_is_applied_before_the_policy_is_asked(runtime: VirtualRuntime) -> None:
    schema = compile_schema({"properties": {"amount": {"type": "integer", "default": 7}}, "required": ["to"]})
    rule = {"when": "payload.amount == 7", "action": "allow"}
    topics = Topics((Topic(name="pay", schema=schema),))
    async with staged(runtime, topics=topics, policy=rulebook(rule, default="require_approval")) as stage:
        paid = await stage.job((await stage.submit("pay", payload=b'{"to":"acct"}')).id)
        with pytest.raises(Invalid) as refused:
            await stage.order("pay", payload=b'{"amount":"hunter2"}')
        other = await stage.job((await stage.submit("other", payload=b'{ "kept" : "as it came" }')).id)

        assert json.loads(paid.payload) == {"to": "acct", "amount": 7}
        assert (paid.decision or {})["rule"] == "r0"
        assert "the schema of topic pay" in str(refused.value)
        assert "$.amount" in str(refused.value)
        assert "hunter2" not in str(refused.value)
        assert other.payload == b'{ "kept" : "as it came" }'


@undelivered
@on_virtual_time
async def test_the_same_key_again_gives_the_job_with_its_defaults(runtime: VirtualRuntime) -> None:
    schema = compile_schema({"properties": {"amount": {"default": 7}}})
    async with staged(runtime, topics=Topics((Topic(name="pay", schema=schema),))) as stage:
        first = await stage.order("pay", payload=b"{}", key="k")
        again = await stage.order("pay", payload=b"{}", key="k")

        assert (again.repeated, again.job.id) == (True, first.job.id)
