"""Submit: keys, limits, and what an acknowledgement means. Rows 100 and 103."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.core.decision import Decision
from holdfast.core.job import Job, Tenant
from holdfast.core.policy import Rulebook
from holdfast.core.states import Event, Risk
from holdfast.core.topic import Topic, Topics
from holdfast.errors import Invalid, KeyInFlight, KeyReused, StoreUnavailable, TooMany
from holdfast.flow.submit import Order
from holdfast.ports import Accepted, JobFilter


@undelivered
@on_virtual_time
async def test_same_key_and_payload_give_the_first_job(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        first = await stage.order(key="k", payload=b"1")
        again = await stage.order(key="k", payload=b"1")
        assert (again.job.id, again.repeated) == (first.job.id, True)


@undelivered
@on_virtual_time
async def test_same_key_with_another_payload_is_refused(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await stage.order(key="k", payload=b"1")
        with pytest.raises(KeyReused) as caught:
            await stage.order(key="k", payload=b"2")
        assert caught.value.status == 422


@undelivered
@on_virtual_time
async def test_same_request_written_differently_is_the_same_request(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        limits: dict[str, Any] = {"key": "k", "labels": {"a": "1", "b": "2"}, "timeout_s": 60}
        first = await stage.order(payload=b'{"a":1,"b":{"c":2,"d":[3]}}', **limits)
        for payload in (b'{"b":{"d":[3],"c":2},"a":1}', b' {"a": 1.0, "b": {"c": 20e-1, "d": [3]}} '):
            again = await stage.order(payload=payload, **{**limits, "labels": {"b": "2", "a": "1"}, "timeout_s": 60.0})
            assert (again.job.id, again.repeated) == (first.job.id, True)
        with pytest.raises(KeyReused):
            await stage.order(payload=b'{"a":1,"b":{"c":2,"d":[3,3]}}', **limits)


@undelivered
@on_virtual_time
async def test_key_belongs_to_its_tenant(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        ours = await stage.order(key="k", payload=b"1")
        theirs = await stage.order(key="k", payload=b"2", tenant=Tenant("other"))
        assert ours.job.id != theirs.job.id


@undelivered
@on_virtual_time
async def test_key_in_flight_is_a_conflict(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        door = stage.store.pause("submit")
        first = asyncio.create_task(stage.order(key="k"))
        await door.reached.wait()
        with pytest.raises(KeyInFlight) as caught:
            await stage.order(key="k")
        assert caught.value.status == 409
        door.open()
        accepted = await first
        assert (await stage.order(key="k")).job.id == accepted.job.id


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
@undelivered
@on_virtual_time
async def test_key_is_freed_when_the_submission_failed(runtime: VirtualRuntime, fault: Fault) -> None:
    async with staged(runtime) as stage:
        stage.store.fault("submit", fault, times=1)
        with pytest.raises(StoreUnavailable):
            await stage.order(key="k")
        accepted = await stage.order(key="k")
        assert accepted.repeated == (fault is Fault.LOSE_REPLY)
        assert await stage.inner.count_jobs() == {(ACME, accepted.job.state): 1}


class Broken:
    """A policy that cannot make anything of one topic."""

    version = 1
    hash = ""

    def decide(self, job: Job) -> Decision:
        if job.topic == "odd":
            raise ZeroDivisionError
        return Decision(Event.ALLOW)


@undelivered
@on_virtual_time
async def test_key_is_freed_when_another_order_of_its_batch_could_not_be_judged(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=Broken()) as stage:
        plain = Order(tenant=ACME, topic="t", payload=b"{}", labels={}, key="k")
        with pytest.raises(ZeroDivisionError):
            await stage.submitter.submit([plain, replace(plain, topic="odd", key="odd")])
        assert not (await stage.submitter.submit_one(plain)).repeated


@undelivered
@on_virtual_time
async def test_an_order_that_nobody_could_approve_is_refused_without_the_others_of_its_batch(
    runtime: VirtualRuntime,
) -> None:
    asked = {"action": "require_approval", "approval": {"separate": True}}
    rules = [{"name": "payouts", "match": {"topic": "payout"}, **asked}]
    book = Rulebook(1, {"format": 1, "default": {"action": "allow"}, "rules": rules})
    async with staged(runtime, policy=book, live_jobs_max=2) as stage:
        plain = Order(tenant=ACME, topic="t", payload=b"{}", labels={})
        answers = await stage.submitter.submit([plain, replace(plain, topic="payout"), plain])

        assert [type(answer) for answer in answers] == [Accepted, Invalid, Accepted]


@on_virtual_time
async def test_a_batch_is_admitted_as_far_as_there_is_room(runtime: VirtualRuntime) -> None:
    async with staged(runtime, live_jobs_max=4) as stage:
        orders = [Order(tenant=ACME, topic="t", payload=b"{}", labels={}, key=key) for key in "abcde"]
        for _ in range(2):
            # What only repeats its key keeps no room.
            answers = await stage.submitter.submit(orders[:2])
            assert [type(answer) for answer in answers] == [Accepted, Accepted]
        answers = await stage.submitter.submit(orders[2:])

        assert [type(answer) for answer in answers] == [Accepted, Accepted, TooMany]


@on_virtual_time
async def test_tenant_at_its_limit_is_told_when_to_come_back_and_others_are_not(runtime: VirtualRuntime) -> None:
    async with staged(runtime, live_jobs_max=2) as stage:
        first = await stage.begun()
        await stage.submit()
        with pytest.raises(TooMany) as caught:
            await stage.submit()
        assert caught.value.status == 429
        assert caught.value.retry_after_s > 0
        await stage.submit(tenant=Tenant("other"))
        await stage.complete(first)
        await asyncio.sleep(caught.value.retry_after_s)
        await stage.submit()


@undelivered
@on_virtual_time
async def test_at_its_limit_a_tenant_is_still_given_the_answer_to_a_request_it_repeats(
    runtime: VirtualRuntime,
) -> None:
    async with staged(runtime, live_jobs_max=1) as stage:
        first = await stage.order(key="k", payload=b"1")
        again = await stage.order(key="k", payload=b"1")
        assert (again.job.id, again.repeated) == (first.job.id, True)
        for other in ({"key": "k", "payload": b"2"}, {"key": "another"}, {}):
            with pytest.raises(TooMany):
                await stage.order(**other)
        assert len(await stage.inner.list_jobs(ACME, JobFilter(), before=None, limit=10)) == 1


@pytest.mark.parametrize(
    ("topic", "asked", "got"),
    [
        (Risk.HIGH, Risk.LOW, Risk.HIGH),
        (Risk.MEDIUM, Risk.LOW, Risk.LOW),
        (Risk.MEDIUM, Risk.HIGH, Risk.HIGH),
        (Risk.LOW, None, Risk.LOW),
    ],
)
@undelivered
@on_virtual_time
async def test_caller_does_not_talk_a_risky_topic_down(
    runtime: VirtualRuntime, topic: Risk, asked: Risk | None, got: Risk
) -> None:
    async with staged(runtime, topics=Topics((Topic(name="pay", risk=topic),))) as stage:
        assert (await stage.submit(topic="pay", risk=asked)).risk is got
