"""Planes on a server, jobs and locks in one place: alone, and two of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
import servers

from plane.over_http import history, plane, submit, wait_ended, working
from plane.shared_planes import JOBS, ends, has_gaps, on
from plane.store_fixtures import FRESH


@pytest.fixture(params=list(FRESH))
def url(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[str]:
    with FRESH[request.param](running) as url:
        yield url


async def test_job_walks_from_submission_to_outcome(url: str) -> None:
    async with plane(on(url)) as http:
        job_id = await submit(http, 1)
        async with working(http, "w1"):
            await wait_ended(http, [job_id])
        job = (await http.get(f"/v1/jobs/{job_id}")).json()
        kinds = await history(http, job_id)

    assert (job["state"], job["result"], job["attempts"]) == ("SUCCEEDED", 1, 1)
    assert kinds == ["job.submitted", "job.dispatched", "job.started", "job.succeeded"]


async def test_two_planes_on_one_database_give_out_each_job_once(url: str) -> None:
    async with plane(on(url)) as one, plane(on(url)) as two:
        async with working(one, "w1") as by_one, working(two, "w2") as by_two:
            ids = await asyncio.gather(*(submit((one, two)[n % 2], n) for n in range(JOBS)))
            # Read at the plane that did not take it: what it tells is the same.
            await wait_ended(two, ids)

    assert by_one + by_two == Counter(dict.fromkeys(ids, 1))
    assert await ends(url) == Counter(dict.fromkeys(ids, 1))
    assert not await has_gaps(url)


async def test_key_used_at_two_planes_at_once_makes_one_job(url: str) -> None:
    async with plane(on(url)) as one, plane(on(url)) as two:
        made = await asyncio.gather(*(submit((one, two)[n % 2], 7) for n in range(20)))

    assert len(set(made)) == 1


async def test_word_of_one_plane_reaches_who_waits_at_the_other(url: str) -> None:
    """A long poll, far longer than any of the loops' own looks."""
    async with plane(on(url)) as one, plane(on(url)) as two:
        job_id = await submit(one, 1)
        waiting = asyncio.create_task(two.get(f"/v1/jobs/{job_id}", params={"wait": 20}))
        async with working(one, "w1"):
            async with asyncio.timeout(10):
                reply = await waiting

    assert reply.json()["state"] == "SUCCEEDED"
