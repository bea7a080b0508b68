"""Submissions of the same moment travel together, and each is answered as if it had come alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from gateway.conftest import Served
from gateway.test_client_outages import DONE, JOB, Network, answer, asking
from holdfast import api, errors
from holdfast.client import AsyncClient
from holdfast.client.asks import Ask
from holdfast.client.async_connections import AsyncConnections
from holdfast.client.together import BYTES_MAX, JOBS_MAX
from holdfast.http1.answer import Reply

ALONE, BATCH = "/v1/jobs", "/v1/jobs:batch"
LOST = b"HTTP/1.1 200 OK\r\n"
"""The beginning of an answer."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each path was asked for."""
    paths: Counter[str] = Counter()
    send = AsyncConnections.request

    async def request(self: AsyncConnections, ask: Ask[Any], *, within_s: float) -> Reply:
        paths[ask.path] += 1
        return await send(self, ask, within_s=within_s)

    monkeypatch.setattr(AsyncConnections, "request", request)
    return paths


async def test_one_by_itself_goes_as_before(served: Served, asked: Counter[str]) -> None:
    assert (await served.client.submit("t", 1)).payload == 1
    assert asked == {ALONE: 1}


async def test_callers_of_the_same_moment_share_a_request_and_stay_together(
    served: Served, asked: Counter[str]
) -> None:
    async def call(caller: int) -> list[Any]:
        return [(await served.client.submit("t", [caller, n])).payload for n in range(3)]

    said = await asyncio.gather(*map(call, range(10)))

    assert said == [[[caller, n] for n in range(3)] for caller in range(10)]
    assert asked == {BATCH: 3}


async def test_very_many_take_several_requests(served: Served, asked: Counter[str]) -> None:
    await asyncio.gather(*(served.client.submit("t") for _ in range(2 * JOBS_MAX + 1)))
    assert asked == {BATCH: 2, ALONE: 1}

    asked.clear()
    half = "x" * (BYTES_MAX // 2)
    await asyncio.gather(*(served.client.submit("t", half) for _ in range(3)))
    assert asked == {ALONE: 3}, "two of them, with their quotes, are more than go into one"


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"topic": ""}, errors.Invalid),
        ({"topic": "t", "priority": 1_000}, errors.Invalid),
        ({"topic": "t", "payload": "x" * (1 << 21)}, errors.TooLarge),
        ({"topic": "t", "payload": float("nan")}, errors.Invalid),
        ({"topic": "t", "payload": object()}, TypeError),
    ],
)
async def test_one_that_is_refused_is_told_so_and_no_other(
    served: Served, bad: dict[str, Any], error: type[Exception]
) -> None:
    said = await asyncio.gather(
        served.client.submit("t", 1), served.client.submit(**bad), served.client.submit("t", 2), return_exceptions=True
    )

    assert isinstance(said[1], error)
    assert [job.payload for job in (said[0], said[2]) if isinstance(job, api.JobView)] == [1, 2]
    assert len((await served.client.list(topic="t")).items) == 2


async def test_who_repeats_a_key_gets_the_first_job_and_who_reuses_it_an_error(served: Served) -> None:
    said: list[Any] = await asyncio.gather(
        served.client.submit("t", 1, idempotency_key="k"),
        served.client.submit("t", 1, idempotency_key="k"),
        served.client.submit("t", 2, idempotency_key="k"),
        served.client.submit("t", 3),
        return_exceptions=True,
    )

    first, again, reused, keyless = said
    assert first.id == again.id != keyless.id
    assert isinstance(reused, errors.KeyReused)
    assert len((await served.client.list(topic="t")).items) == 2


async def test_each_is_said_by_whom_it_was_said(served: Served) -> None:
    jobs = await asyncio.gather(*(served.client.submit("t", actor=actor) for actor in ("ann", "bob", "ann", "bob")))

    assert [job.actor for job in jobs] == ["ann", "bob", "ann", "bob"]


@pytest.mark.parametrize("who", [0, 1])
async def test_one_who_is_cancelled_takes_nobody_along(served: Served, who: int) -> None:
    tasks = [asyncio.create_task(served.client.submit("t", n)) for n in range(3)]
    await asyncio.sleep(0)
    tasks[who].cancel()

    said = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(answer) is api.JobView for answer in said] == [n != who for n in range(3)]


def submitted(*members: api.Submitted) -> bytes:
    return answer(api.SubmittedJobs(jobs=list(members)))


def problem(status: int, code: str, *, retryable: bool) -> api.Submitted:
    told = api.Problem(type="", title="", status=status, code=code, detail="no", retryable=retryable)
    return api.Submitted(error=msgspec.to_builtins(told))


async def two(client: AsyncClient, key: str | None = None) -> list[Any]:
    keys = (None, None) if key is None else (key, key + "2")
    said: list[Any] = await asyncio.gather(
        *(client.submit("t", idempotency_key=k) for k in keys), return_exceptions=True
    )
    return said


@on_virtual_time
async def test_a_lost_answer_is_everybodys_and_nothing_is_said_again(runtime: VirtualRuntime) -> None:
    network = Network(runtime, LOST)
    async with asking(network) as client:
        said = await two(client)

    assert [isinstance(error, errors.PlaneUnavailable) and error.applied for error in said] == [None, None]
    assert network.asked == [BATCH]


@pytest.mark.parametrize("answers", [(), (api.Submitted(job=JOB),), (api.Submitted(job=JOB), api.Submitted())])
@on_virtual_time
async def test_what_answers_unlike_a_plane_leaves_nobody_waiting(
    runtime: VirtualRuntime, answers: tuple[api.Submitted, ...]
) -> None:
    async with asking(Network(runtime, submitted(*answers))) as client:
        said = await two(client)

    assert [type(error) for error in said] == [errors.PlaneUnavailable] * 2


@on_virtual_time
async def test_with_keys_it_is_said_again(runtime: VirtualRuntime) -> None:
    network = Network(runtime, LOST, submitted(api.Submitted(job=JOB), api.Submitted(job=DONE)))
    async with asking(network) as client:
        assert [job.state for job in await two(client, "k")] == ["RUNNING", "SUCCEEDED"]

    assert network.asked == [BATCH, BATCH]


@on_virtual_time
async def test_what_may_have_been_stored_is_not_said_again(runtime: VirtualRuntime) -> None:
    unknown = problem(503, "store-unavailable", retryable=True)
    network = Network(runtime, submitted(api.Submitted(job=JOB), unknown))
    async with asking(network) as client:
        job, error = await two(client)

    assert isinstance(error, errors.StoreUnavailable)
    assert job.id == "j"
    assert network.asked == [BATCH]


@on_virtual_time
async def test_who_is_to_come_later_does_so_alone(runtime: VirtualRuntime) -> None:
    busy = problem(429, "too-many", retryable=True)
    later = {"type": "", "title": "", "status": 429, "code": "too-many", "retryable": True}
    network = Network(
        runtime, submitted(api.Submitted(job=JOB), busy), answer(later, 429, retry_after="3"), answer(DONE)
    )
    async with asking(network) as client:
        assert [job.state for job in await two(client, "k")] == ["RUNNING", "SUCCEEDED"]

    assert network.asked == [BATCH, ALONE, ALONE]
    assert network.pauses() == [0.0, 3.0]
