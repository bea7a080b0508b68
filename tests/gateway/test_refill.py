"""Outcomes that are answered with what follows from them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.conftest import Served

STEPS = 30
CHAIN = {
    "name": "chain",
    "steps": [
        {"id": f"s{n}", "kind": "job", "topic": "t", "depends_on": [f"s{n - 1}"] if n else []} for n in range(STEPS)
    ],
}


async def first_step(served: Served) -> dict[str, Any]:
    await served.client.apply_workflow(json.dumps(CHAIN))
    await served.client.start_run("chain")
    return await served.start()


async def complete(served: Served, delivery: dict[str, Any], **more: Any) -> Any:
    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded"}
    return await served.work("complete", worker="w1", outcomes=[outcome], **more)


async def complete_until_filled(served: Served, step: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A step, and the next one, which came with the answer to it while a claim went on waiting. Not the first of them, perhaps:
    nobody is given anything past others, and until the scheduler has looked somebody may wait."""
    for _ in range(STEPS):
        waiting = asyncio.create_task(served.work("claim", worker="w1", wait_s=20, start=True))
        await served.wait_claimed()
        if following := (await complete(served, step, refill=1))["deliveries"]:
            assert not waiting.done()
            waiting.cancel()
            return step, following[0]
        [step] = (await waiting)["deliveries"]
    pytest.fail("no step came with an answer")


async def test_next_step_comes_with_the_answer_to_the_last_one(served: Served) -> None:
    _, following = await complete_until_filled(served, await first_step(served))

    job = await served.client.get(following["job_id"])
    assert (job.state, job.fence) == ("RUNNING", following["fence"])


async def test_nothing_comes_with_an_answer_that_was_not_asked_for(served: Served) -> None:
    first = await first_step(served)

    completed = await complete(served, first)

    assert completed["deliveries"] == []
    [second] = (await served.work("claim", worker="w1", wait_s=5, start=True))["deliveries"]
    assert second["job_id"] != first["job_id"]


async def test_refill_whose_answer_was_lost_is_in_the_next_claim(served: Served) -> None:
    step, lost = await complete_until_filled(served, await first_step(served))

    repeated = await complete(served, step, refill=1)
    again = await served.work("claim", worker="w1", start=True, holding=[])

    assert repeated["deliveries"] == []
    assert [(each["job_id"], each["fence"]) for each in again["deliveries"]] == [(lost["job_id"], lost["fence"])]


@pytest.mark.parametrize("refill", [0, 1])
async def test_outcome_that_is_refused_does_not_hide_what_came(served: Served, refill: int) -> None:
    first = await first_step(served)
    late = {"job_id": first["job_id"], "fence": first["fence"] - 1, "outcome": "succeeded"}

    answer = await served.post("/v1/work/complete", {"worker": "w1", "outcomes": [late], "refill": refill})

    if refill:
        assert answer.status_code == 200
        assert answer.json()["attempts"][0]["status"] == "stale-fence"
    else:
        assert answer.status_code == 409
