"""`/v1/work/*` as a worker in any language sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from harness import eventually
from msgspec.structs import replace
from plane.jobs import sending

from gateway.conftest import Served, serving
from holdfast.api import NewJob
from holdfast.core.job import JobId
from holdfast.ports import Delivery


async def test_worker_takes_a_job_to_its_end(served: Served) -> None:
    await served.introduce()
    job = await served.client.submit("t", {"n": 1})

    [delivery] = (await served.work("claim", worker="w1", wait_s=5))["deliveries"]
    ref = {"job_id": delivery["job_id"], "fence": delivery["fence"]}
    assert (delivery["job_id"], delivery["payload"], delivery["attempt"]) == (job.id, {"n": 1}, 1)
    assert (await served.work("start", worker="w1", attempts=[ref]))["attempts"][0]["status"] == "ok"
    await served.work("progress", worker="w1", **ref, progress={"done": 0.5})
    assert (await served.client.get(job.id)).progress == {"done": 0.5}
    assert (await served.work("renew", worker="w1", attempts=[ref]))["attempts"][0]["status"] == "ok"
    await served.work("complete", worker="w1", outcomes=[{**ref, "outcome": "succeeded", "result": [1]}])

    done = await served.client.wait(job.id, timeout=5)
    assert (done.state, done.result, done.attempts) == ("SUCCEEDED", [1], 1)


async def test_claim_waits_for_the_first_delivery(served: Served) -> None:
    await served.introduce()
    waiting = asyncio.create_task(served.work("claim", worker="w1", wait_s=20, start=True))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    job = await served.client.submit("t")

    [delivery] = (await asyncio.wait_for(waiting, 10))["deliveries"]
    assert (delivery["job_id"], (await served.client.get(job.id)).state) == (job.id, "RUNNING")


async def test_claim_that_still_looks_is_handed_jobs_and_no_more_than_it_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, look_on = asyncio.Event(), asyncio.Event()
    take = served.plane.bus.take

    async def take_slowly(worker: str, *, limit: int) -> list[Delivery]:
        deliveries = await take(worker, limit=limit)
        looking.set()
        await look_on.wait()
        return deliveries

    await served.introduce()
    await served.started()
    monkeypatch.setattr(served.plane.bus, "take", take_slowly)
    claiming = asyncio.create_task(served.work("claim", worker="w1", limit=3, wait_s=20, start=True))
    await looking.wait()
    answers = await served.client.submit_many([NewJob(topic="t")] * 5)
    ids = [answer.job.id for answer in answers if answer.job is not None]

    async def states() -> list[str]:
        return sorted([(await served.client.get(job_id)).state for job_id in ids])

    while "SCHEDULED" in await states():
        await asyncio.sleep(0.01)
    look_on.set()

    handed = {delivery["job_id"] for delivery in (await claiming)["deliveries"]}
    assert handed < set(ids)
    assert len(handed) == 2, "of three, for the job that it has in hand might have been waiting for it"
    assert await states() == ["DISPATCHED"] * 3 + ["RUNNING"] * 2


@pytest.mark.parametrize("found", ["when it comes", "by a hint"])
async def test_claim_that_starts_what_it_has_found_is_handed_the_rest_of_what_it_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    starting, go_on = asyncio.Event(), asyncio.Event()
    settle = served.plane.bus.settle

    async def settle_slowly(deliveries: Sequence[Delivery]) -> None:
        starting.set()
        await go_on.wait()
        await settle(deliveries)

    await served.introduce()
    await served.started()
    monkeypatch.setattr(served.plane.bus, "settle", settle_slowly)
    if found == "when it comes":
        sent = await sent_by_another(served)
    claiming = asyncio.create_task(served.work("claim", worker="w1", limit=3, wait_s=20, start=True))
    if found == "by a hint":
        await asyncio.sleep(0.05)
        sent = await sent_by_another(served)
    await starting.wait()
    answers = await served.client.submit_many([NewJob(topic="t")] * 5)
    ids = [answer.job.id for answer in answers if answer.job is not None]
    while "SCHEDULED" in [(await served.client.get(job_id)).state for job_id in ids]:
        await asyncio.sleep(0.01)
    go_on.set()

    claimed = [delivery["job_id"] for delivery in (await claiming)["deliveries"]]
    assert claimed[0] == sent
    assert len(claimed) == 3
    assert set(claimed[1:]) < set(ids)


async def sent_by_another(served: Served) -> str:
    """A job that another scheduler sends to the worker, and not by way of a claim that waits here."""
    store = served.plane.store
    [job] = await store.find_jobs([JobId((await served.client.submit("t", delay_s=60)).id)])
    assert job is not None
    change = sending(store, job)
    delivery = Delivery("w1", job.id, change.after.fence)
    await store.apply([replace(change, send=delivery, detail={"worker": delivery.worker})])
    return job.id


async def test_caller_who_hung_up_gets_no_job(served: Served) -> None:
    """A job started for nobody would wait for its lease to run out."""
    await served.introduce()
    async with httpx2.AsyncClient(base_url=served.url, trust_env=False) as other:
        body = {"worker": "w1", "wait_s": 30, "start": True}
        claiming = asyncio.create_task(other.post("/v1/work/claim", json=body, timeout=20))
        await served.wait_claimed()
        claiming.cancel()
        await asyncio.wait([claiming])
    await eventually(lambda: asyncio.sleep(0, not served.plane.claims.waits("w1")))

    job_id = await served.dispatched()

    [delivery] = (await served.work("claim", worker="w1", wait_s=5))["deliveries"]
    assert delivery["job_id"] == job_id


async def test_unknown_worker_must_say_hello(served: Served) -> None:
    answer = await served.post("/v1/work/claim", {"worker": "stranger"})

    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


async def test_late_result_is_refused_and_kept_as_evidence(served: Served) -> None:
    delivery = await served.started()
    lie = {"job_id": delivery["job_id"], "fence": delivery["fence"] - 1, "outcome": "succeeded"}

    alone = await served.post("/v1/work/complete", {"worker": "w1", "outcomes": [lie]})
    several = await served.work("complete", worker="w1", outcomes=[lie, {**lie, "job_id": "none"}])

    assert (alone.status_code, alone.json()["code"]) == (409, "stale-fence")
    assert alone.json()["current_fence"] == delivery["fence"]
    assert [attempt["status"] for attempt in several["attempts"]] == ["stale-fence", "not-found"]
    assert (await served.client.get(delivery["job_id"])).state == "RUNNING"
    kinds = [event.kind for event in (await served.client.events(delivery["job_id"])).items]
    assert kinds.count("attempt.refused") == 2


async def test_outcome_of_a_worker_the_plane_forgot_counts(served: Served) -> None:
    delivery = await served.started()
    served.plane.registry.gone("w1", now=served.plane.store.now())
    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}

    await served.work("complete", worker="w1", outcomes=[outcome])

    assert (await served.client.get(delivery["job_id"])).state == "SUCCEEDED"


async def test_cancel_reaches_the_worker_with_its_next_renewal(served: Served) -> None:
    delivery = await served.started()
    ref = {"job_id": delivery["job_id"], "fence": delivery["fence"]}

    await served.client.cancel(delivery["job_id"])

    assert (await served.work("renew", worker="w1", attempts=[ref]))["attempts"][0]["cancel"] is True


async def test_goodbye_gives_everything_back_at_once(served: Served) -> None:
    delivery = await served.started()

    await served.work("goodbye", worker="w1", gone=True)

    job = await served.client.get(delivery["job_id"])
    assert (job.state, job.worker) == ("SCHEDULED", "")
    assert (await served.client.workers()).items == []


async def test_draining_worker_keeps_what_runs_and_loses_what_waits(served: Served) -> None:
    running = await served.started()
    waiting = await served.client.submit("t")
    while (await served.client.get(waiting.id)).state != "DISPATCHED":
        await asyncio.sleep(0.01)

    await served.client.drain("w1")

    assert (await served.client.get(running["job_id"])).state == "RUNNING"
    assert (await served.client.get(waiting.id)).state == "SCHEDULED"


async def test_worker_that_can_begin_nothing_keeps_what_runs_and_loses_what_waits(served: Served) -> None:
    running = await served.started()
    waiting = await served.client.submit("t")
    while (await served.client.get(waiting.id)).state != "DISPATCHED":
        await asyncio.sleep(0.01)

    await served.work("hello", worker="w1", name="w1", topics=["t"], slots=4, unable="no process can be started")

    assert (await served.client.get(running["job_id"])).state == "RUNNING"
    assert (await served.client.get(waiting.id)).state == "SCHEDULED"
    ref = {"job_id": running["job_id"], "fence": running["fence"]}
    await served.work("complete", worker="w1", outcomes=[{**ref, "outcome": "handed_back", "error": {"code": "c"}}])
    job = await served.client.get(running["job_id"])
    assert (job.state, job.attempts, job.worker) == ("SCHEDULED", 0, "")


async def test_restarted_worker_ends_its_predecessors_leases(served: Served) -> None:
    await served.work("hello", worker="other", name="mail", topics=["u"], slots=1, host="elsewhere")
    await served.work("hello", worker="w1", name="mail", topics=["t"], slots=1, host="here")
    job = await served.client.submit("t")
    [delivery] = (await served.work("claim", worker="w1", wait_s=5, start=True))["deliveries"]

    said = {"worker": "w2", "name": "mail", "topics": ["u"], "slots": 1, "host": "here"}
    assert (await served.work("hello", **said))["predecessors"] == ["w1"]
    assert (await served.work("hello", **said, predecessor_dead=["w1", "other"]))["predecessors"] == []

    assert delivery["job_id"] == job.id
    assert (await served.client.get(job.id)).state == "SCHEDULED"
    assert {worker.id for worker in (await served.client.workers()).items} == {"w2", "other"}


async def test_death_of_a_worker_is_not_held_against_a_job_that_it_was_never_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, bus="nats://127.0.0.1:1", dispatch="outbox") as served:
        said = {"name": "mail", "slots": 1, "host": "here"}
        await served.work("hello", worker="w1", topics=["t"], **said)
        job_id = await served.dispatched()
        await served.work("hello", worker="w2", topics=["u"], **said, predecessor_dead=["w1"])

        job = await served.client.get(job_id)
        assert (job.state, job.retries) == ("SCHEDULED", {"publish": 1})


async def test_effect_happens_once_over_attempts(served: Served) -> None:
    delivery = await served.started()
    named = {"worker": "w1", "job_id": delivery["job_id"], "fence": delivery["fence"], "key": "charge"}

    first = await served.work("effect/prepare", **named)
    await served.work("effect/commit", **named, result={"id": 7})
    again = await served.work("effect/prepare", **named)
    stale = await served.post("/v1/work/effect/prepare", {**named, "fence": 1})

    assert (first["ruling"], again["ruling"], again["result"]) == ("run", "remembered", {"id": 7})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale-fence")
