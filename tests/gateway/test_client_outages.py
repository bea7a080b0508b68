"""The clients against a network and proxies that fail, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from holdfast import api, errors
from holdfast.client import AsyncClient
from holdfast.client.waiting import HEAR_S

JOB = api.JobView(
    id="j", topic="t", state="RUNNING", payload=None, labels={}, priority=0, risk="low", attempts=1, max_attempts=3,
    schedulings=1, retries={}, worker="w", fence=7, created_at=0, since=0, not_before=0, deadline=None,
    lease_until=None, cancel_requested=False, progress=None, result=None, error=None, replay_of=None, version=2,
)  # fmt: skip
DONE = msgspec.structs.replace(JOB, state="SUCCEEDED")

HUNG = b""
"""Said by a plane that does not answer, and keeps its connection."""

Step = bytes | OSError


class Network:
    """Meets each connection of this loop with the next step of a story, and writes down when and what was asked."""

    def __init__(self, runtime: VirtualRuntime, *steps: Step) -> None:
        self.runtime = runtime
        self.asked: list[str] = []
        self._steps = list(steps)
        self._tried_at: list[float] = []
        asyncio.get_running_loop().create_connection = self._connect  # type: ignore[method-assign, assignment]

    async def _connect(self, make: Callable[[], asyncio.Protocol], *_: object, **__: object) -> tuple[Any, Any]:
        self._tried_at.append(self.runtime.now())
        step = self._steps.pop(0)
        if isinstance(step, OSError):
            raise step
        protocol = make()
        protocol.connection_made(Wire(self, protocol, step))
        return None, protocol

    def pauses(self) -> list[float]:
        return [after - before for before, after in pairwise(self._tried_at)]


class Wire(asyncio.Transport):
    """One connection: says its part when it is asked, and hangs up."""

    def __init__(self, network: Network, protocol: asyncio.Protocol, says: bytes) -> None:
        super().__init__()
        self._network = network
        self._protocol = protocol
        self._says = says

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._network.asked.append(bytes(data).split()[1].decode())
        if self._says:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.data_received, self._says)
            loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None: ...


def asking(network: Network, url: str = "http://plane") -> AsyncClient:
    return AsyncClient(url, runtime=network.runtime)


def answer(body: object, status: int = 200, **headers: str) -> bytes:
    return page(msgspec.json.encode(body), status, **headers)


def page(content: bytes, status: int = 200, **headers: str) -> bytes:
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Said\r\ncontent-length: {len(content)}\r\n{named}\r\n".encode() + content


def refused() -> OSError:
    return ConnectionRefusedError("refused")


def event(number: int, state: str = "RUNNING") -> str:
    view = api.EventView(number=number, job_id="j", kind="k", state=state, attempt=1, fence=7, at=0, detail={})
    return f"id: {number}\ndata: {msgspec.json.encode(view).decode()}\n\n"


def broken_after(*texts: str) -> bytes:
    """A stream that says this much and then loses its connection."""
    chunks = b"".join(f"{len(text):x}\r\n{text}\r\n".encode() for text in texts)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


@on_virtual_time
async def test_newer_plane_is_understood(runtime: VirtualRuntime) -> None:
    newer = {**msgspec.to_builtins(JOB), "colour": "blue"}
    problem = {"type": "", "title": "", "status": 404, "code": "not-found", "detail": "no job j", "hue": 1}
    async with asking(Network(runtime, answer(newer), answer(problem, 404))) as client:
        assert (await client.get("j")).id == "j"
        with pytest.raises(errors.NotFound):
            await client.get("j")


@on_virtual_time
async def test_retry_after_is_waited_for(runtime: VirtualRuntime) -> None:
    problem = {"type": "", "title": "", "status": 429, "code": "too-many", "retryable": True}
    network = Network(
        runtime, answer(problem, 429, retry_after="3"), answer(JOB), answer(problem, 429, retry_after="60")
    )
    async with asking(network) as client:
        await client.submit("t", idempotency_key="k")
        assert network.pauses() == [3.0]

        with pytest.raises(errors.TooMany) as limited:
            await client.submit("t", idempotency_key="k")
    assert limited.value.retry_after_s == 60.0


@pytest.mark.parametrize("status", [502, 503, 504])
@on_virtual_time
async def test_proxy_without_a_plane_is_an_outage(runtime: VirtualRuntime, status: int) -> None:
    away = page(b"<html>bad gateway</html>", status)
    network = Network(runtime, away, answer(JOB), away, *[away] * 10)
    async with asking(network) as client:
        assert (await client.get("j")).id == "j"
        with pytest.raises(errors.PlaneUnavailable) as unheard:
            await client.submit("t")
        with pytest.raises(errors.PlaneUnavailable) as unread:
            await client.get("j")
    assert unheard.value.applied is None, "the proxy may have passed it on"
    assert unread.value.applied is False, "who reads changes nothing"


@on_virtual_time
async def test_what_is_no_plane_is_an_error_of_ours(runtime: VirtualRuntime) -> None:
    async with asking(Network(runtime, *[page(b"<html>welcome</html>")] * 4)) as client:
        with pytest.raises(errors.PlaneUnavailable, match="check the URL"):
            await client.workers()


@on_virtual_time
async def test_wait_outlives_a_restart_of_the_plane(runtime: VirtualRuntime) -> None:
    draining = {"type": "", "title": "", "status": 503, "code": "draining", "retryable": True}
    leaving = [answer(draining, 503) for _ in range(4)]
    steps: Sequence[Step] = [answer(JOB), *leaving, *[refused() for _ in range(12)], answer(DONE)]
    network = Network(runtime, *steps)
    async with asking(network) as client:
        assert (await client.wait("j", timeout=600)).state == "SUCCEEDED"
    assert min(network.pauses()) > 0, "a plane that answers early or not at all is not asked in a tight loop"


@on_virtual_time
async def test_run_whose_plane_is_restarted_once_it_has_the_job_outlives_that(runtime: VirtualRuntime) -> None:
    network = Network(runtime, answer(JOB, 202), *[refused() for _ in range(12)], answer(DONE))
    async with asking(network) as client:
        assert (await client.run("t", timeout=600)).state == "SUCCEEDED"


@on_virtual_time
async def test_wait_by_whoever_was_answered_before_outlives_a_restart(runtime: VirtualRuntime) -> None:
    """The submission was: a plane that is killed before it has answered the wait as well is the same plane."""
    network = Network(runtime, answer(JOB, 202), *[refused() for _ in range(12)], answer(DONE))
    async with asking(network) as client:
        submitted = await client.submit("t")
        assert (await client.wait(submitted.id, timeout=600)).state == "SUCCEEDED"


@on_virtual_time
async def test_wait_ends_in_time_while_the_plane_is_away(runtime: VirtualRuntime) -> None:
    async with asking(Network(runtime, answer(JOB), *[refused() for _ in range(200)])) as client:
        with pytest.raises(TimeoutError, match=r"job j had not ended when the plane was last heard of: .*refused"):
            await client.wait("j", timeout=5)
    assert 5 <= runtime.now() - 1000 < 6


@on_virtual_time
async def test_plane_that_does_not_answer_is_not_asked_again_when_the_time_is_over(runtime: VirtualRuntime) -> None:
    network = Network(runtime, HUNG, HUNG)
    async with asking(network) as client:
        for wait in (client.wait("j", timeout=3), client.run("t", timeout=3)):
            with pytest.raises(TimeoutError):
                await wait
    assert len(network.asked) == 2
    assert runtime.now() - 1000 == pytest.approx(2 * (3 + HEAR_S))


@on_virtual_time
async def test_wait_for_a_plane_that_was_never_there_ends(runtime: VirtualRuntime) -> None:
    async with asking(Network(runtime, *[refused() for _ in range(4)])) as client:
        with pytest.raises(errors.PlaneUnavailable):
            await client.wait("j", timeout=600)
    assert runtime.now() - 1000 < 5


@on_virtual_time
async def test_wait_for_a_plane_that_stays_away_ends(runtime: VirtualRuntime) -> None:
    async with asking(Network(runtime, answer(JOB), *[refused() for _ in range(200)])) as client:
        with pytest.raises(errors.PlaneUnavailable):
            await client.wait("j")
    assert 30 <= runtime.now() - 1000 < 40


@on_virtual_time
async def test_watch_goes_on_where_it_was_after_a_restart(runtime: VirtualRuntime) -> None:
    network = Network(
        runtime,
        broken_after("retry: 1000\nid: 4\n\n"),
        *[refused() for _ in range(5)],
        broken_after(event(5), "id: 6\n"),
        broken_after(event(6, "SUCCEEDED")),
    )
    async with asking(network) as client:
        numbers = []
        async for heard in client.watch():
            numbers.append(heard.number)
            if heard.number == 6:
                break

    assert numbers == [5, 6], "an event of which only the number arrived is told again"
    assert [target.partition("after=")[2] for target in network.asked] == ["", "4", "5"]
    assert len(network.pauses()) == 7


@on_virtual_time
async def test_watch_of_what_is_no_plane_says_so(runtime: VirtualRuntime) -> None:
    """A proxy that asks people to log in, or another server at that port. Where a plane was before, it may come back."""
    login = page(b"<html>", content_type="text/html")
    async with asking(Network(runtime, login)) as client:
        with pytest.raises(errors.PlaneUnavailable, match=r"does not answer like a plane \(text/html"):
            await anext(client.watch())
    network = Network(runtime, broken_after("id: 1\n\n"), login, broken_after(event(2, "SUCCEEDED")))
    async with asking(network) as client:
        assert [heard.number async for heard in client.watch("j")] == [2]


@on_virtual_time
async def test_gap_cut_in_half_does_not_spoil_the_next_connection(runtime: VirtualRuntime) -> None:
    network = Network(runtime, broken_after(event(1), "event: gap\n"), broken_after(event(2, "SUCCEEDED")))
    async with asking(network) as client:
        assert [heard.number async for heard in client.watch("j")] == [1, 2]


@on_virtual_time
async def test_watch_of_a_job_that_retention_removed_ends(runtime: VirtualRuntime) -> None:
    gap = 'retry: 1000\n\nevent: gap\ndata: {"reason":"pruned","resume_after":0}\n\n'
    async with asking(Network(runtime, broken_after(gap))) as client:
        assert [heard async for heard in client.watch("j")] == []


@pytest.mark.parametrize("url", ["https://plane.example", "http://[::1]:7070"])
@on_virtual_time
async def test_plane_that_is_away_is_named_by_its_address(runtime: VirtualRuntime, url: str) -> None:
    async with asking(Network(runtime, *[refused() for _ in range(4)]), url) as client:
        with pytest.raises(errors.PlaneUnavailable) as away:
            await client.workers()
    assert str(away.value) == f"{url}: refused"
