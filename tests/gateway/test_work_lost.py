"""`/v1/work/*` when something was lost, came too late, or is wanted at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.conftest import Served


def ref(delivery: dict[str, Any]) -> dict[str, Any]:
    return {"job_id": delivery["job_id"], "fence": delivery["fence"]}


async def test_claim_whose_answer_was_lost_is_answered_again(served: Served) -> None:
    lost = await served.started()

    again = await served.work("claim", worker="w1", start=True, holding=[])
    none = await served.work("claim", worker="w1", start=True, holding=[ref(lost)])

    assert [ref(delivery) for delivery in again["deliveries"]] == [ref(lost)]
    assert again["deliveries"][0]["attempt"] == 1
    assert none["deliveries"] == []


async def test_claim_names_as_many_attempts_as_a_worker_may_have(served: Served) -> None:
    lost = await served.started()
    others = [{"job_id": f"{n:0128}", "fence": 2**62} for n in range(9_999)]

    none = await served.work("claim", worker="w1", start=True, holding=[ref(lost), *others])

    assert none["deliveries"] == []


async def test_claim_that_is_answered_again_has_a_fresh_lease(served: Served) -> None:
    lost = await served.started()
    first = (await served.client.get(lost["job_id"])).lease_until

    await served.work("claim", worker="w1", start=True, holding=[])

    second = (await served.client.get(lost["job_id"])).lease_until
    assert first is not None
    assert second is not None
    assert second > first


async def test_older_claim_of_a_worker_that_waits_for_none_is_given_nothing(served: Served) -> None:
    """Its answer would be read by nobody, and the job would wait for its lease to run out."""
    await served.introduce()
    older = asyncio.create_task(served.work("claim", worker="w1", wait_s=20, start=True))
    await served.wait_claimed()
    newer = asyncio.create_task(served.work("claim", worker="w1", wait_s=20, start=True, holding=[]))

    assert (await asyncio.wait_for(older, 10))["deliveries"] == []
    job = await served.client.submit("t")
    [delivery] = (await asyncio.wait_for(newer, 10))["deliveries"]
    assert delivery["job_id"] == job.id


async def test_claim_says_how_long_it_waited_before_the_lease_began(served: Served) -> None:
    await served.introduce()
    began_at = served.plane.runtime.now()
    waiting = asyncio.create_task(served.work("claim", worker="w1", wait_s=20, start=True))
    await served.wait_claimed()
    await asyncio.sleep(0.3)
    await served.client.submit("t")
    late = await waiting
    took_s = served.plane.runtime.now() - began_at
    await served.dispatched()
    at_once = await served.work("claim", worker="w1", start=True)

    assert 0.2 < late["waited_s"] < took_s
    assert at_once["waited_s"] == 0


async def test_cancel_is_heard_at_once_and_only_once(served: Served) -> None:
    delivery = await served.started()
    listening = asyncio.create_task(served.work("listen", worker="w1", wait_s=20))
    await asyncio.sleep(0.05)
    assert not listening.done()

    await served.client.cancel(delivery["job_id"])

    assert (await asyncio.wait_for(listening, 10))["cancel"] == [ref(delivery)]
    assert (await served.work("listen", worker="w1"))["cancel"] == [ref(delivery)]  # that answer may have been lost
    assert (await served.work("listen", worker="w1", heard=[ref(delivery)]))["cancel"] == []


async def test_cancel_is_nobody_elses_news(served: Served) -> None:
    delivery = await served.started()
    await served.introduce("w2")

    await served.client.cancel(delivery["job_id"])

    assert (await served.work("listen", worker="w2"))["cancel"] == []


async def test_listening_is_a_heartbeat_of_a_known_worker(served: Served) -> None:
    await served.introduce()
    member = served.plane.registry._members["w1"]
    member.last_seen -= 1.0  # not so long ago that a sweep forgets it
    before = member.last_seen

    await served.work("listen", worker="w1")

    assert member.last_seen > before
    assert (await served.post("/v1/work/listen", {"worker": "stranger"})).status_code == 404


async def test_plane_that_shuts_down_lets_nobody_wait(served: Served) -> None:
    """An empty answer at once would be followed by the next request at once."""
    await served.introduce()
    served.gateway.drain()

    for verb in ("claim", "listen"):
        answer = await served.post(f"/v1/work/{verb}", {"worker": "w1", "wait_s": 20})
        assert (answer.status_code, answer.json()["code"]) == (503, "draining")


@pytest.mark.parametrize(
    ("verb", "said", "what"),
    [
        ("renew", {}, "renewal"),
        ("start", {}, "start"),
        ("progress", {"progress": 1}, "progress"),
        ("effect/prepare", {"key": "charge"}, "effect"),
        ("effect/commit", {"key": "paid"}, "effect"),
        ("effect/withdraw", {"key": "paid"}, "effect"),
        ("complete", {"outcome": "succeeded"}, "succeeded"),
        ("complete", {"outcome": "timed_out"}, "timed_out"),
    ],
)
async def test_whatever_comes_too_late_is_counted_and_kept(
    served: Served, verb: str, said: dict[str, Any], what: str
) -> None:
    delivery = await served.started()
    await served.work("effect/prepare", worker="w1", **ref(delivery), key="paid")
    late = {**ref(delivery), "fence": delivery["fence"] - 1, **said}
    several = {"renew": "attempts", "start": "attempts", "complete": "outcomes"}

    await served.post(f"/v1/work/{verb}", {"worker": "w1", **({several[verb]: [late]} if verb in several else late)})

    counted = served.plane.telemetry.registry.get_sample_value("holdfast_attempts_refused_total", {"what": what})
    assert counted == 1
    kinds = [event.kind for event in (await served.client.events(delivery["job_id"])).items]
    assert {"attempt.refused", "effect.refused"} & set(kinds)


async def test_renewal_that_its_own_outcome_overtook_is_no_alarm(served: Served) -> None:
    delivery = await served.started()
    await served.work("complete", worker="w1", outcomes=[{**ref(delivery), "outcome": "succeeded"}])

    [standing] = (await served.work("renew", worker="w1", attempts=[ref(delivery)]))["attempts"]

    assert standing["status"] == "stale-fence"
    kinds = [event.kind for event in (await served.client.events(delivery["job_id"])).items]
    assert "attempt.refused" not in kinds


async def test_attempt_that_ran_too_long_ends_as_recovery_would_end_it(served: Served) -> None:
    delivery = await served.started()
    outcome = {**ref(delivery), "outcome": "timed_out"}

    for _ in range(2):  # the second time as if the first answer had been lost
        answer = await served.work("complete", worker="w1", outcomes=[outcome])
        assert answer["attempts"][0]["status"] == "ok"

    job = await served.client.get(delivery["job_id"])
    assert job.error is not None
    assert (job.state, job.error["code"]) == ("TIMEOUT", "running-timeout")
    [letter] = (await served.client.dead_letters()).items
    assert (letter.job_id, letter.reason) == (job.id, "running-timeout")
