"""The Python clients: the same promises with and without a loop."""

from __future__ import annotations

import asyncio
import inspect
import socket

import pytest

from gateway.conftest import Served
from holdfast import api, errors
from holdfast.api.schedules import NewSchedule, ScheduledJob
from holdfast.client import AsyncClient, Client


async def test_both_clients_say_the_same(served: Served) -> None:
    def story() -> tuple[str, str]:
        with Client(served.url) as plane:
            job = plane.submit("t", {"n": 1}, idempotency_key="k", labels={"a": "b"})
            assert plane.submit("t", {"n": 1}, idempotency_key="k", labels={"a": "b"}).id == job.id
            [other] = plane.submit_many([api.NewJob(topic="u")])
            assert other.job is not None
            plane.cancel(other.job.id, reason="no need")
            assert [event.kind for event in plane.events(other.job.id).items][-1] == "job.cancelled"
            assert plane.retry(other.job.id).replay_of == other.job.id
            assert len(plane.list(topic="u").items) == 2
            plane.workers(), plane.locks(), plane.dead_letters(), plane.effects()
            with pytest.raises(TimeoutError):
                plane.wait(job.id, timeout=0.05)
            plane.cancel(job.id)
            return job.id, plane.wait(job.id, timeout=1).state

    job_id, state = await asyncio.to_thread(story)

    assert (await served.client.get(job_id)).state == state == "CANCELLED"


async def test_a_payload_that_is_no_json_is_not_sent(served: Served) -> None:
    with pytest.raises(ValueError, match="NaN"):
        await served.client.submit("t", {"score": float("nan")})
    with pytest.raises(ValueError, match="NaN"):
        await served.client.start_run("w", [float("inf")])
    with pytest.raises(ValueError, match="NaN"):
        await served.client.submit_many([api.NewJob(topic="t"), api.NewJob(topic="t", payload=[float("nan")])])
    with pytest.raises(TypeError):
        await served.client.submit("t", object())
    assert (await served.client.list()).items == []


NAN = float("nan")
HALF = "\udcff"
"""What Python makes of a byte that is no UTF-8, in a file name or an argument."""


@pytest.mark.parametrize(
    ("verb", "given", "options"),
    [
        ("submit", ("t",), {"timeout_s": NAN}),
        ("freeze", ("all",), {"reason": "r", "for_s": NAN}),
        ("edit_approval", ("a", {"amount": NAN}), {}),
        ("respond", ("a", [NAN]), {}),
        ("add_schedule", (NewSchedule(name="s", every_s=60, job=ScheduledJob(topic="t", payload=NAN)),), {}),
        ("resolve_effect", ("j", "k", api.ResolveEffect(state="committed", reason="r", result=NAN)), {}),
        ("submit", (HALF,), {}),
        ("submit", ("t", HALF), {}),
        ("submit", ("t",), {"labels": {"a": HALF}}),
        ("cancel", ("j",), {"reason": HALF}),
        ("get", (HALF,), {}),
        ("list", (), {"topic": HALF}),
    ],
)
@pytest.mark.parametrize("face", [Client, AsyncClient])
async def test_what_would_arrive_as_something_else_is_not_sent(
    face: type[Client | AsyncClient], verb: str, given: tuple[object, ...], options: dict[str, object]
) -> None:
    """JSON has no word for NaN: sent as null, a limit would be none at all, and an amount nothing."""
    with pytest.raises(errors.Invalid, match=r"NaN|no text"):
        answer = getattr(face("http://127.0.0.1:1"), verb)(*given, **options)
        if inspect.isawaitable(answer):
            await answer


async def test_refusals_are_raised_as_their_classes(served: Served) -> None:
    job = await served.client.submit("t", idempotency_key="k")

    with pytest.raises(errors.NotFound) as absent:
        await served.client.get("none")
    assert (absent.value.code, absent.value.status) == ("not-found", 404)
    with pytest.raises(errors.KeyReused):
        await served.client.submit("other", idempotency_key="k")
    with pytest.raises(errors.VersionMismatch):
        await served.client.cancel(job.id, version=99)
    with pytest.raises(errors.Conflict, match="only FAILED"):
        await served.client.retry(job.id)
    with pytest.raises(errors.Invalid, match="topic"):
        await served.client.submit("a b")
    with pytest.raises(errors.TooLarge):
        await served.client.submit("t", "x" * (1 << 20))


async def test_wait_returns_as_soon_as_the_job_has_ended(served: Served) -> None:
    delivery = await served.started()
    waiting = asyncio.create_task(served.client.wait(delivery["job_id"], timeout=20))
    await asyncio.sleep(0.05)

    outcome = {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": "succeeded", "result": 5}
    await served.work("complete", worker="w1", outcomes=[outcome])

    assert (await asyncio.wait_for(waiting, 10)).result == 5


async def test_job_is_watched_to_its_end_whatever_kinds_are_wanted(served: Served) -> None:
    job = await served.client.submit("t")
    await served.client.cancel(job.id)

    async def watched() -> list[str]:
        return [event.kind async for event in served.client.watch(job.id, kinds=["job.sub*"])]

    assert await asyncio.wait_for(watched(), 10) == ["job.submitted"]


def test_verbs_show_their_signatures_and_promises() -> None:
    with Client() as client:
        assert list(inspect.signature(client.cancel).parameters) == ["job_id", "reason", "version"]
    assert "durable when it returns" in str(AsyncClient.submit.__doc__)


async def test_plane_that_is_not_there_is_an_error_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(errors.PlaneUnavailable) as away:
            await client.submit("t")

    assert away.value.applied is False


async def test_read_is_repeated_until_the_plane_is_back(served: Served) -> None:
    """A listener that drops its first two callers stands for a plane that is being restarted."""
    dropped = 0
    port = int(served.url.rsplit(":", 1)[1])

    async def flaky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dropped
        if dropped < 2:
            dropped += 1
            await reader.readline()
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await there.readuntil(b"\r\n\r\n"))
        writer.write(await there.read(1 << 16))
        writer.close()
        back.close()

    job = await served.client.submit("t")
    async with await asyncio.start_server(flaky, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        async with AsyncClient(f"http://127.0.0.1:{address[1]}") as client:
            assert (await client.get(job.id)).id == job.id
            assert dropped == 2
            dropped = 0
            with pytest.raises(errors.PlaneUnavailable):  # without a key nobody knows whether it was stored
                await client.submit("t")
            assert dropped == 1


async def test_run_submits_and_returns_the_job_that_has_ended(served: Served) -> None:
    running = asyncio.create_task(served.client.run("t", {"n": 1}, timeout=20))
    delivery = await served.start()
    await served.succeed(delivery, result={"n": 2})

    ended = await running

    assert (ended.id, ended.state, ended.result) == (delivery["job_id"], "SUCCEEDED", {"n": 2})


async def test_run_gives_up_waiting_and_not_the_job(served: Served) -> None:
    with pytest.raises(TimeoutError):
        await served.client.run("t", timeout=0.05, idempotency_key="k")

    assert (await served.client.submit("t", idempotency_key="k")).state == "SCHEDULED"


async def test_run_again_after_a_lost_answer_is_the_same_job(served: Served) -> None:
    with pytest.raises(TimeoutError):
        await served.client.run("t", timeout=0.05, idempotency_key="k")
    running = asyncio.create_task(served.client.run("t", timeout=20, idempotency_key="k"))
    delivery = await served.start()
    await served.succeed(delivery)

    assert (await running).id == delivery["job_id"]
    assert len((await served.client.list(topic="t")).items) == 1
