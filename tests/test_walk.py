"""The whole walk of a job, over HTTP: submitted, decided, dispatched, claimed, started, completed, read. On every store, with
its deliveries in the store, on NATS, and by way of an outbox where the store has one; every server a real one.

And the one thing Holdfast is for: a worker that lost its lease comes back with a result, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import servers
from plane.nats_buses import nats_running
from plane.store_fixtures import EMPTY

from holdfast.app import serving
from holdfast.config import Settings
from holdfast.core.topic import Topic, Topics

LEASE_S = 0.5
TOPICS = Topics((Topic(name="mail.*", lease_s=LEASE_S),))
WAYS = ("store direct", "nats direct", "nats outbox")
COMBINATIONS = [f"{store} {way}" for store in ("sqlite", *EMPTY) for way in WAYS]
COMBINATIONS.remove("redis nats outbox")


@pytest.fixture(params=COMBINATIONS)
def settings(
    request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path
) -> Iterator[Settings]:
    store, bus, dispatch = request.param.split()
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'walk.db'}"
        if store in EMPTY:
            url = stack.enter_context(EMPTY[store](running))
        nats = stack.enter_context(nats_running()).url if bus == "nats" else ""
        yield Settings(store=url, bus=nats, dispatch=dispatch, port=0, topics=TOPICS)


async def say(http: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    reply = await http.post(path, json=body)
    assert reply.status_code < 300, reply.text
    return reply.json()


async def test_job_walks_from_submission_to_outcome_and_a_zombie_is_refused(settings: Settings) -> None:
    async with serving(settings) as url, httpx2.AsyncClient(base_url=url) as http:
        # submit: durable when it is answered, and decided by the policy in the same step.
        job = await say(http, "/v1/jobs", topic="mail.send", payload={"to": "ann"})
        assert job["state"] == "SCHEDULED"

        # dispatch: as soon as there is a worker, the scheduler gives it the job, under a fence.
        await say(http, "/v1/work/hello", worker="zombie", name="zombie", topics=["mail.*"], slots=1)
        [delivery] = (await say(http, "/v1/work/claim", worker="zombie", wait_s=10))["deliveries"]
        assert delivery["payload"] == {"to": "ann"}

        # start: RUNNING is the worker's word. From here on it has the job for the length of its lease.
        attempt = {"job_id": job["id"], "fence": delivery["fence"]}
        assert (await say(http, "/v1/work/start", worker="zombie", attempts=[attempt]))["attempts"][0]["status"] == "ok"

        # It asks for nothing more and falls silent. Its lease expires, the reconciler takes the job back, and
        # another worker gets it.
        await say(http, "/v1/work/goodbye", worker="zombie")
        await say(http, "/v1/work/hello", worker="healthy", name="healthy", topics=["mail.*"], slots=1)
        [again] = (await say(http, "/v1/work/claim", worker="healthy", wait_s=10, start=True))["deliveries"]
        assert again["job_id"] == job["id"]
        assert again["fence"] > delivery["fence"]

        # complete: accepted, because the fence is the job's own.
        outcome = {"job_id": job["id"], "fence": again["fence"], "outcome": "succeeded", "result": {"sent": True}}
        await say(http, "/v1/work/complete", worker="healthy", outcomes=[outcome])

        # The zombie wakes up. Its fence is old: refused, counted, and kept as evidence.
        late = {**attempt, "outcome": "succeeded", "result": {"sent": "twice"}}
        refusal = await http.post("/v1/work/complete", json={"worker": "zombie", "outcomes": [late]})
        assert refusal.status_code == 409
        assert refusal.json()["code"] == "stale-fence"

        # get: one outcome, and the whole history.
        ended = (await http.get(f"/v1/jobs/{job['id']}")).json()
        assert (ended["state"], ended["result"], ended["attempts"]) == ("SUCCEEDED", {"sent": True}, 2)
        history = (await http.get(f"/v1/jobs/{job['id']}/events")).json()["items"]
        kinds = " ".join(event["kind"].removeprefix("job.") for event in history)
        assert kinds == "submitted dispatched started lost dispatched started succeeded attempt.refused"
