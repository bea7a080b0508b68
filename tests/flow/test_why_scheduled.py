"""Jobs that nobody dispatches, each put into it on a real plane: the first finding names the true cause (docs/reference/why.md)."""

from __future__ import annotations

import asyncio

from locks.virtual import VirtualRuntime, on_virtual_time

from flow.explaining import cause, cause_of_worker, codes, why
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.decision import Decision, Throttle
from holdfast.core.job import Job, Tenant
from holdfast.core.retry import Backoff
from holdfast.core.share import Quota, Quotas
from holdfast.core.states import Event
from holdfast.core.topic import Topic, Topics
from holdfast.core.why import Reason, Weight
from holdfast.flow.dispatch import JOB
from holdfast.flow.freeze import freeze
from holdfast.flow.record import EFFECT_UNKNOWN, End
from holdfast.registry import SILENT_S

OTHER = Tenant("umbrella")


@undelivered
@on_virtual_time
async def test_no_worker_takes_the_topic(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit("mail.send")
        stage.hello("w1", topics=["pay.*"])

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.NO_WORKER, Weight.BLOCKED)
    assert found.evidence == {"pool": "default", "topic": "mail.send", "workers": 1}


@undelivered
@on_virtual_time
async def test_workers_that_know_the_topic_are_in_another_pool(runtime: VirtualRuntime) -> None:
    async with staged(runtime, topics=Topics((Topic(name="mail.send", pool="fast"),))) as stage:
        job = await stage.submit("mail.send")
        stage.hello("w1")

        found = await cause(stage, job)

    assert found.reason is Reason.POOL_MISMATCH
    assert found.evidence == {"pool": "fast", "workers_in": ["default"]}


@undelivered
@on_virtual_time
async def test_no_worker_has_the_labels_that_the_job_requires(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(labels={"require.gpu": "a100"})
        stage.hello("w1")

        found = await cause(stage, job)

    assert found.reason is Reason.LABELS_MISMATCH
    assert found.evidence["requires"] == {"gpu": "a100"}


@on_virtual_time
async def test_every_worker_is_full(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=1)
        await stage.submit()
        await stage.scheduler.tick()
        job = await stage.submit()
        await stage.scheduler.tick()

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.WORKERS_FULL, Weight.WAITING)
    assert found.evidence["workers"] == ["w1"]


@undelivered
@on_virtual_time
async def test_every_worker_drains(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        stage.registry.drain("w1", now=stage.store.now())
        job = await stage.submit()

        found = await cause(stage, job)

    assert found.reason is Reason.WORKERS_DRAINING


@on_virtual_time
async def test_every_worker_says_that_it_can_begin_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", unable="no process can be started")
        job = await stage.submit()
        await stage.scheduler.tick()

        found = await cause(stage, job)
        [worker] = await cause_of_worker(stage, "w1")
        stage.hello("w1")
        await stage.scheduler.tick()
        again = await stage.job(job.id)

    assert found.reason is worker.reason is Reason.WORKERS_UNABLE
    assert "no process can be started" in worker.summary
    assert again.worker == "w1"


@undelivered
@on_virtual_time
async def test_every_worker_has_fallen_silent(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        heard = stage.store.now()
        await asyncio.sleep(2 * SILENT_S)
        job = await stage.submit()

        found = await cause(stage, job)

    assert found.reason is Reason.WORKERS_SILENT
    assert found.since == heard


@on_virtual_time
async def test_bus_does_not_take_the_delivery(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        stage.hello("w1")
        stage.publish_fault = BusFault.NOT_APPLIED
        job = await stage.submit()
        await stage.dispatch(job, "w1")

        found = await cause(stage, job)

    assert found.reason is Reason.PUBLISH_FAILED
    assert found.evidence == {"error": "bus-unavailable", "failures": 1}


@on_virtual_time
async def test_job_waits_between_two_attempts(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="mail.send", backoff=Backoff(first_s=60.0, cap_s=60.0)),))
    async with staged(runtime, topics=topics) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        await stage.complete(job, End.FAILED, error={"code": "smtp-down", "message": "no"})

        found = await cause(stage, job)
        [attempt] = (await why(stage, job)).attempts
        waits = await stage.job(job.id)

    assert (found.reason, found.until) == (Reason.BACKOFF, waits.not_before)
    assert found.evidence == {"code": "smtp-down", "attempts": "1 of 3"}
    assert (attempt.worker, attempt.ending, attempt.reason) == ("w1", "failed", "smtp-down")


@undelivered
@on_virtual_time
async def test_job_is_not_to_begin_yet(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit(delay_s=60)

        found = await cause(stage, job)

    assert (found.reason, found.until) == (Reason.DELAYED, job.not_before)


@on_virtual_time
async def test_job_is_parked_for_an_unknown_effect(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        first = await stage.begun("w1")
        await stage.inner.prepare_effect(first.id, first.fence, "refund", idempotent=False)
        await asyncio.sleep(31)
        await stage.reconciler.tick()
        await stage.dispatch(await stage.job(first.id), "w2")
        second = await stage.claim_one("w2")
        await stage.complete(second, End.FAILED, error={"code": EFFECT_UNKNOWN, "message": "refund"})

        found = await cause(stage, second)

    assert (found.reason, found.weight) == (Reason.EFFECT_UNKNOWN, Weight.BLOCKED)
    assert found.evidence == {"effects": ["refund"]}
    assert found.then[1] == f"holdfast effect resolve {first.id} refund --state committed --reason TEXT"


@on_virtual_time
async def test_job_that_ended_tells_what_nobody_knows_of_its_effects(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.begun("w1")
        await stage.inner.prepare_effect(job.id, job.fence, "refund", idempotent=False)
        await stage.complete(job, End.FAILED, retryable=False, error={"code": "bank-hung-up", "message": "x"})

        explained = await why(stage, job)

    assert codes(explained) == [Reason.FAILED, Reason.EFFECT_UNKNOWN, Reason.DEAD_LETTER]
    assert explained.findings[1].weight is Weight.NOTE
    assert explained.findings[1].then[0] == f"holdfast effect show {job.id} refund"


@on_virtual_time
async def test_job_waits_behind_another_of_its_session(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        first = await stage.begun("w1", session="chat")
        job = await stage.submit(session="chat")

        found = await cause(stage, job)

    assert found.reason is Reason.SESSION_BUSY
    assert found.evidence == {"session": "chat", "behind": first.id, "ahead": 1}
    assert found.then == (f"holdfast why job {first.id}",)


@on_virtual_time
async def test_tenant_has_as_many_jobs_at_work_as_it_may(runtime: VirtualRuntime) -> None:
    async with staged(runtime, quotas=Quotas({ACME: Quota(running_max=1)})) as stage:
        stage.hello("w1")
        await stage.begun("w1")
        job = await stage.submit()

        found = await cause(stage, job)

    assert found.reason is Reason.TENANT_AT_LIMIT
    assert found.evidence == {"running": 1, "running_max": 1}


@on_virtual_time
async def test_topic_has_as_many_jobs_at_work_as_it_may(runtime: VirtualRuntime) -> None:
    async with staged(runtime, topics=Topics((Topic(name="mail.send", running_max=1),))) as stage:
        stage.hello("w1")
        await stage.begun("w1", tenant=OTHER)
        job = await stage.submit()

        found = await cause(stage, job)

    assert found.reason is Reason.TOPIC_AT_LIMIT


class OneAtATime:
    version = 4

    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW, version=4, rule="slowly", throttle=Throttle(key="mail", concurrency=1))


@on_virtual_time
async def test_rule_of_the_policy_lets_no_more_work_at_once(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=OneAtATime()) as stage:
        stage.hello("w1")
        await stage.begun("w1")
        job = await stage.submit()

        found = await cause(stage, job)

    assert found.reason is Reason.RULE_AT_LIMIT
    assert (found.evidence["rule"], found.evidence["policy"]) == ("slowly", 4)


@on_virtual_time
async def test_jobs_of_others_come_first(runtime: VirtualRuntime) -> None:
    """And whose they are is nobody's business: only how many."""
    async with staged(runtime) as stage:
        stage.hello("w1", slots=1)
        await stage.submit()
        await stage.scheduler.tick()
        for _ in range(3):
            await stage.submit(tenant=OTHER, priority=50)
        job = await stage.submit()

        explained = await why(stage, job)

    found = explained.findings[0]
    assert codes(explained) == [Reason.BEHIND_OTHERS, Reason.WORKERS_FULL]
    assert found.evidence == {"ahead": 3, "own": 0, "urgent": 3, "priority": 0}
    assert OTHER not in str(explained.findings)


@undelivered
@on_virtual_time
async def test_nobody_dispatches_although_a_worker_has_room(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        await asyncio.sleep(30)
        stage.hello("w1")

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.NOBODY_DISPATCHES, Weight.BLOCKED)


@undelivered
@on_virtual_time
async def test_scheduler_died_with_the_lock_of_the_job(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        dead = await stage.replica("S2")
        await dead.locks.acquire(JOB, job.id)
        await asyncio.sleep(15)
        stage.hello("w1")

        found = await cause(stage, job)

    assert found.reason is Reason.DISPATCH_LOCKED
    assert found.evidence["holder"] == "S2"


@undelivered
@on_virtual_time
async def test_topic_is_frozen(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        await freeze("topic=mail.*", reason="wrong addresses", by="ana", for_s=60, store=stage.inner)
        job = await stage.submit()

        found = await cause(stage, job)

    assert (found.reason, found.weight, found.until) == (Reason.FROZEN, Weight.BLOCKED, job.since + 60)
    assert found.evidence == {"scope": "topic=mail.*", "by": "ana", "reason": "wrong addresses"}


@undelivered
@on_virtual_time
async def test_nothing_is_in_the_way(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit()

        assert codes(await why(stage, job)) == [Reason.READY]
