"""The courier: no event is lost or posted twice, tries go on and end, and nobody holds the others up."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time
from msgspec.structs import replace

from flow.couriers import Receiver, Reply, courier, couriers, posts, subscribe, webhook_now
from flow.faulty_store import Fault
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.core.webhook import (
    ATTEMPTS_MAX,
    SENDING_S,
    PostState,
    post_from,
    post_record,
    post_to,
    try_again,
    webhook_from,
    webhook_record,
)
from holdfast.flow.keep import add_record, remove_record
from holdfast.ports import JobEvent, Note, RecordChange, Transaction
from holdfast.webhooks import EVENTS, FAR, HANDS_PER_WEBHOOK, PAGES, POSTS, PUT_OFF_S_MAX

OTHER = Tenant("other")


@on_virtual_time
async def test_wanted_events_are_posted_once_and_others_not(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        await stage.submit()
        hook = await subscribe(stage, "ops", "job.succeeded", "job.sub*")
        async with couriers(stage, receiver):
            for _ in range(3):
                await stage.complete(await stage.begun())
            await asyncio.sleep(5)

        log = await posts(stage, "ops")
        assert [post.event for post in log] == ["job.submitted", "job.succeeded"] * 3
        assert [post.state for post in log] == [PostState.DELIVERED] * 6
        assert sorted(receiver.ids(hook.url)) == [post.id for post in log]


@undelivered
@on_virtual_time
async def test_tenant_with_many_events_does_not_keep_others_waiting(runtime: VirtualRuntime) -> None:
    """What one tick leaves of them the next one takes, at once."""
    receiver = Receiver()
    async with staged(runtime) as stage:
        busy = await subscribe(stage, "busy", "job.submitted")
        theirs = await subscribe(stage, "theirs", "*", tenant=OTHER)
        note = Note(ACME, JobId(""), "note", {})
        await stage.inner.add_notes([note] * (2 * PAGES * EVENTS + 1))
        await stage.submit(tenant=OTHER)
        await stage.submit()
        await courier(stage, receiver).tick()

        assert (await webhook_now(stage, "busy")).cursor == PAGES * EVENTS
        assert len(await posts(stage, "theirs", OTHER)) == 1
        async with couriers(stage, receiver):
            await asyncio.sleep(0.5)
        assert (await webhook_now(stage, "busy")).cursor > 2 * PAGES * EVENTS
        assert [len(receiver.ids(webhook.url)) for webhook in (busy, theirs)] == [1, 1]


@undelivered
@on_virtual_time
async def test_tenants_hear_only_of_themselves(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        ours = await subscribe(stage, "ours", "*")
        theirs = await subscribe(stage, "theirs", "*", tenant=OTHER)
        job = await stage.submit()
        async with couriers(stage, receiver):
            await asyncio.sleep(5)

        assert [content["data"]["job_id"] for _, _, content in receiver.got] == [job.id]
        assert (len(receiver.ids(ours.url)), receiver.ids(theirs.url)) == (1, [])


@pytest.mark.parametrize("fault", list(Fault)[:3])
@undelivered
@on_virtual_time
async def test_no_event_is_lost_or_doubled_by_a_write_that_fails(runtime: VirtualRuntime, fault: Fault) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        for _ in range(5):
            await stage.submit()
        stage.store.fault("transact", fault, times=3)
        async with couriers(stage, receiver):
            await asyncio.sleep(4 * SENDING_S)

        assert sorted(set(receiver.ids(hook.url))) == [post.id for post in await posts(stage, "ops")]
        assert len(await posts(stage, "ops")) == 5
        assert all(post.state is PostState.DELIVERED for post in await posts(stage, "ops"))


@undelivered
@on_virtual_time
async def test_post_whose_end_was_not_written_is_sent_again_under_its_id(runtime: VirtualRuntime) -> None:
    receiver = Receiver(takes_s={"https://ops.example/": 5.0})
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        await stage.submit()
        async with couriers(stage, receiver):
            await asyncio.sleep(3)
            stage.store.fault("transact", Fault.FAIL, times=1)
            await asyncio.sleep(2 * SENDING_S)

        [post] = await posts(stage, "ops")
        assert receiver.ids(hook.url) == [post.id, post.id]
        assert post.state is PostState.DELIVERED
        assert stage.counted("webhook_tries", outcome="unwritten") == 1


@undelivered
@on_virtual_time
async def test_several_replicas_post_each_event_once(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        async with couriers(stage, receiver, count=3):
            for _ in range(20):
                await stage.submit()
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)

        assert len(receiver.ids(hook.url)) == len(set(receiver.ids(hook.url))) == 20


@undelivered
@on_virtual_time
async def test_replica_that_stops_while_it_sends_leaves_the_post_to_others(runtime: VirtualRuntime) -> None:
    """It may have arrived: it comes again under the same id, and the try that was cut off is counted."""
    receiver = Receiver(takes_s={"https://ops.example/": 10.0})
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        await stage.submit()
        async with couriers(stage, receiver):
            await asyncio.sleep(3)
        assert receiver.ids(hook.url) == []
        async with couriers(stage, receiver):
            await asyncio.sleep(SENDING_S + 15)

        [post] = await posts(stage, "ops")
        assert receiver.ids(hook.url) == [post.id]
        assert (post.state, post.begun, len(post.tries)) == (PostState.DELIVERED, 2, 1)


@undelivered
@on_virtual_time
async def test_each_try_has_the_same_id_and_its_own_time(runtime: VirtualRuntime) -> None:
    receiver = Receiver(answers={"https://ops.example/": Reply(500, "failed")})
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        await stage.submit()
        async with couriers(stage, receiver):
            await asyncio.sleep(400)
            tried = receiver.ids(hook.url)
            assert len(set(tried)) == 1
            stamps = [int(headers["webhook-timestamp"]) for _, headers, _ in receiver.got]
            waits = [later - earlier for earlier, later in itertools.pairwise(stamps)]
            assert waits == sorted(waits)
            assert 3 <= len(tried) < ATTEMPTS_MAX
            [post] = await posts(stage, "ops")
            assert (post.state, len(post.tries)) == (PostState.PENDING, len(tried))
            receiver.answers.clear()
            async with asyncio.timeout(6_000):
                while len(receiver.got) == len(tried):
                    await asyncio.sleep(60)

        [post] = await posts(stage, "ops")
        assert (post.state, [one.status for one in post.tries][-2:]) == (PostState.DELIVERED, [500, 200])
        assert stage.counted("webhook_tries", outcome="arrived") == 1


@undelivered
@on_virtual_time
async def test_receiver_that_is_gone_is_told_nothing_more(runtime: VirtualRuntime) -> None:
    receiver = Receiver(answers={"https://ops.example/": Reply(410, "refused")})
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        async with couriers(stage, receiver):
            await stage.submit()
            await asyncio.sleep(3)
            await stage.submit()
            await asyncio.sleep(600)

        assert len(receiver.ids(hook.url)) == 1
        disabled = await webhook_now(stage, "ops")
        assert (disabled.enabled, "410" in disabled.why_disabled) == (False, True)
        assert [post.state for post in await posts(stage, "ops")] == [PostState.FAILED]


@undelivered
@on_virtual_time
async def test_courier_that_was_held_up_leaves_a_new_webhook_of_the_same_name_alone(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        old = await subscribe(stage, "ops", "job.*")
        await stage.submit()
        door = stage.store.pause("transact")
        async with couriers(stage, receiver):
            await door.reached.wait()
            await asyncio.sleep(1)
            await remove_record(Kind.WEBHOOK, ACME, "ops", store=stage.inner)
            fresh = replace(old, url="https://new.example/", version=0, cursor=await stage.seen.look())
            await add_record(webhook_record(fresh), store=stage.inner)
            door.open()
            await stage.submit()
            await asyncio.sleep(5)

        assert (await webhook_now(stage, "ops")).url == "https://new.example/"
        assert (len(receiver.ids(old.url)), len(receiver.ids(fresh.url))) == (0, 1)


@on_virtual_time
async def test_post_to_a_webhook_that_was_removed_fails_at_once(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops")
        notify = RecordChange(after=post_to(hook, "step.notified", {}, key="s1", now=stage.store.now()), replaces=0)
        await stage.inner.transact([Transaction(records=[notify])])
        await remove_record(Kind.WEBHOOK, ACME, "ops", store=stage.inner)
        async with couriers(stage, receiver):
            await asyncio.sleep(3)

        [post] = await posts(stage, "ops")
        assert (post.state, post.tries[-1].error, receiver.got) == (PostState.FAILED, "webhook-removed", [])


@undelivered
@on_virtual_time
async def test_post_to_a_webhook_that_was_removed_is_not_for_another_of_its_name(runtime: VirtualRuntime) -> None:
    receiver = Receiver()
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        receiver.answers[hook.url] = Reply(500, "failed")
        async with couriers(stage, receiver):
            await stage.submit()
            await asyncio.sleep(2)
            await remove_record(Kind.WEBHOOK, ACME, "ops", store=stage.inner)
            fresh = replace(
                hook, url="https://new.example/", events=("run.*",), created_at=stage.store.now(), version=0
            )
            await add_record(webhook_record(fresh), store=stage.inner)
            await asyncio.sleep(60)
            [post] = await posts(stage, "ops")
            assert (post.state, post.tries[-1].error) == (PostState.FAILED, "webhook-removed")
            assert receiver.ids(fresh.url) == []

            again = post_record(try_again(post, now=stage.store.now()))
            await stage.inner.transact([Transaction(records=[RecordChange(after=again, replaces=post.version)])])
            await asyncio.sleep(2)
            assert receiver.ids(fresh.url) == [post.id], "whoever asks for that knows whose it is"


@on_virtual_time
async def test_same_post_is_not_written_twice(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops")
        notify = RecordChange(after=post_to(hook, "step.notified", {}, key="s1", now=stage.store.now()), replaces=0)

        assert await stage.inner.transact([Transaction(records=[notify]), Transaction(records=[notify])]) == [
            True,
            False,
        ]


@undelivered
@on_virtual_time
async def test_slow_receiver_does_not_hold_up_others_however_many_wait_for_it(runtime: VirtualRuntime) -> None:
    slow = "https://slow.example/"
    receiver = Receiver(takes_s={slow: 15.0}, answers={slow: Reply(None, "timeout")})
    async with staged(runtime) as stage:
        hook, quick = await subscribe(stage, "slow"), await subscribe(stage, "quick", tenant=OTHER)
        now = stage.store.now()
        crowd = [post_to(hook, "x", {}, key=f"{n}", now=now) for n in range(8 * POSTS)]
        await stage.inner.transact([Transaction(records=[RecordChange(after=one, replaces=0) for one in crowd])])
        async with couriers(stage, receiver):
            await asyncio.sleep(60)
            late = post_to(quick, "x", {}, key="1", now=stage.store.now())
            await stage.inner.transact([Transaction(records=[RecordChange(after=late, replaces=0)])])
            await asyncio.sleep(2)
            assert len(receiver.ids(quick.url)) == 1

        assert receiver.most_at_once[slow] == HANDS_PER_WEBHOOK
        dues = sorted(post.due or 0.0 for post in await posts(stage, "slow"))
        assert dues[-1] <= stage.store.now() + PUT_OFF_S_MAX
        assert dues[HANDS_PER_WEBHOOK * 10] <= stage.store.now() + 300, "who is well again is not kept waiting"


@undelivered
@on_virtual_time
async def test_log_of_what_is_done_with_goes_after_a_while(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        hook = await subscribe(stage, "ops", "job.*")
        now = stage.store.now()
        fresh = replace(post_from(post_to(hook, "run.failed", {}, key="1", now=now)), state=PostState.DELIVERED)
        done = [replace(fresh, id="ops.1", due=now, version=0), replace(fresh, id="ops.2", due=now + 60, version=0)]
        changes = [RecordChange(after=post_record(post), replaces=0) for post in done]
        assert await stage.inner.transact([Transaction(records=changes)]) == [True]
        receiver = Receiver()
        async with couriers(stage, receiver):
            await asyncio.sleep(5)

            assert [post.id for post in await posts(stage, "ops")] == ["ops.2"]
            assert receiver.got == []


@undelivered
@on_virtual_time
async def test_events_that_nobody_wants_cost_no_write(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await subscribe(stage, "ops", "run.*")
        async with couriers(stage, Receiver()):
            await asyncio.sleep(2)
            written = stage.store.calls.get("transact", 0)
            for _ in range(30):
                await stage.submit()
                await asyncio.sleep(0.2)

            assert stage.store.calls.get("transact", 0) == written
            looks = stage.store.calls["list_due"]
            for _ in range(30):
                await stage.inner.add_notes([Note(ACME, JobId(""), "note", {})])
                await asyncio.sleep(0)
            assert stage.store.calls["list_due"] == looks, "whoever does not want it is not looked up for it"


@undelivered
@on_virtual_time
async def test_events_of_others_are_looked_at_once_however_many_wait_for_their_own(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[tuple[int, Tenant | None]] = []
    async with staged(runtime) as stage:
        webhooks = [await subscribe(stage, "ops", "*", tenant=Tenant(f"t{n}")) for n in range(5)]
        await stage.inner.add_notes([Note(ACME, JobId(""), "note", {})] * 3 * EVENTS)
        listed = stage.inner.list_events

        async def list_events(*, after: int, limit: int, tenant: Tenant | None = None) -> list[JobEvent]:
            looked_at.append((after, tenant))
            return await listed(after=after, limit=limit, tenant=tenant)

        one = courier(stage, Receiver())
        for _ in range(4):
            await one.tick()
        monkeypatch.setattr(stage.store, "list_events", list_events, raising=False)
        await one.tick()
        assert looked_at == [(3 * EVENTS, None)]
        looked_at.clear()
        await stage.submit(tenant=webhooks[3].tenant)
        await one.tick()
        assert looked_at == [(3 * EVENTS, None)]
        assert [len(await posts(stage, "ops", webhook.tenant)) for webhook in webhooks] == [0, 0, 0, 1, 0]


@undelivered
@on_virtual_time
async def test_place_of_a_webhook_that_wants_nothing_is_written_now_and_then(runtime: VirtualRuntime) -> None:
    """Else a plane that starts anew would look at all that has ever happened for it."""
    async with staged(runtime) as stage:
        theirs = await subscribe(stage, "ops", "*", tenant=OTHER)
        one, note = courier(stage, Receiver()), Note(ACME, JobId(""), "note", {})
        for _ in range(FAR // EVENTS):
            await stage.inner.add_notes([note] * (EVENTS - 1))
            await one.tick()
        assert webhook_from(await stage.inner.get_record(Kind.WEBHOOK, OTHER, "ops")).cursor == theirs.cursor
        await stage.inner.add_notes([note] * (EVENTS - 1))
        await one.tick()
        assert webhook_from(await stage.inner.get_record(Kind.WEBHOOK, OTHER, "ops")).cursor >= FAR
