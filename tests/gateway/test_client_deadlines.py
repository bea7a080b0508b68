"""A call has one deadline, however its answer comes: a plane, or what stands in for it, may say a byte now and then."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from gateway.test_client_connections import DO, READ, Neighbour, plane_at
from holdfast import errors
from holdfast.client import AsyncClient, Client, waiting
from holdfast.client.asks import ANSWER_S
from holdfast.client.async_connections import AsyncConnections
from holdfast.client.connections import Connections
from holdfast.client.replies import PAUSES_S, WHOLE_S
from holdfast.client.waiting import HEAR_S
from holdfast.worker.http1 import Address

EACH_S = 0.02
TIMEOUT_S = 0.3
IN_TIME_S = 5.0
"""A busy machine may notice late; left to itself, the answer would take a minute."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 3000\r\n\r\n"
IN_HEAD = b"HTTP/1.1 200 OK\r\nx: "
Call = Callable[[Any], Any]
CALLS: list[Call] = [
    lambda plane: plane.wait("j", timeout=TIMEOUT_S),
    lambda plane: plane.wait_run("r", timeout=TIMEOUT_S),
    lambda plane: plane.run("t", timeout=TIMEOUT_S),
    lambda plane: plane.run_workflow("w", timeout=TIMEOUT_S),
]


@contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """The address of a server that says this much at once, and then a byte after the other, for a minute."""
    over = threading.Event()

    def drip(connection: socket.socket, _: bytes) -> None:
        with suppress(OSError):
            connection.sendall(first)
            while not over.wait(EACH_S):
                connection.sendall(b"1")

    there = Neighbour(drip)
    try:
        yield there.url
    finally:
        over.set()
        there.close()


@pytest.fixture
def hears_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "HEAR_S", 0.1)


@pytest.mark.usefixtures("hears_late")
@pytest.mark.parametrize("first", [HEAD, IN_HEAD])
@pytest.mark.parametrize("call", CALLS)
def test_call_ends_in_time_though_its_answer_drips(call: Call, first: bytes) -> None:
    began_at = time.monotonic()
    with dripping(first) as url, Client(url) as plane, pytest.raises(TimeoutError):
        call(plane)

    assert TIMEOUT_S <= time.monotonic() - began_at < IN_TIME_S


@pytest.mark.usefixtures("hears_late")
@pytest.mark.parametrize("first", [HEAD, IN_HEAD])
@pytest.mark.parametrize("call", CALLS)
async def test_call_in_a_loop_ends_in_time_though_its_answer_drips(call: Call, first: bytes) -> None:
    began_at = time.monotonic()
    with dripping(first) as url:
        async with AsyncClient(url) as plane:
            with pytest.raises(TimeoutError):
                await call(plane)

    assert TIMEOUT_S <= time.monotonic() - began_at < IN_TIME_S


@pytest.mark.parametrize("ask", [READ, DO])
def test_request_without_a_timeout_of_its_own_ends_too(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    monkeypatch.setattr("holdfast.client.replies.WHOLE_S", 0.1)
    with dripping(HEAD) as url:
        asked = Connections(plane_at(url))
        with pytest.raises(errors.PlaneUnavailable, match="timed out") as sync:
            asked.request(replace(ask, answer_s=0.2))

        async def in_loop() -> None:
            await AsyncConnections(plane_at(url)).request(replace(ask, answer_s=0.2))

    with dripping(HEAD) as url, pytest.raises(errors.PlaneUnavailable, match="timed out") as in_a_loop:
        asyncio.run(in_loop())

    # What only reads has changed nothing; of the other nobody knows.
    assert sync.value.applied is in_a_loop.value.applied is (False if ask is READ else None)


def test_what_comes_before_a_stream_ends_in_time() -> None:
    async def in_loop(url: str) -> None:
        async for _ in AsyncConnections(plane_at(url)).stream("/v1/events", silence_s=TIMEOUT_S):
            pass

    for first in (IN_HEAD, b"HTTP/1.1 500 Broken\r\ncontent-length: 3000\r\n\r\n"):
        with dripping(first) as url, pytest.raises(errors.PlaneUnavailable):
            list(Connections(plane_at(url)).stream("/v1/events", silence_s=TIMEOUT_S))
        with dripping(first) as url, pytest.raises(errors.PlaneUnavailable):
            asyncio.run(in_loop(url))


def test_who_takes_a_request_in_drops_is_not_waited_for() -> None:
    """As one that is long and is not read: the sockets between take some of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = Connections(plane_at(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        began_at = time.monotonic()
        over = threading.Event()

        def take() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while not over.wait(EACH_S):
                    connection.recv(4096)

        reader = threading.Thread(target=take, daemon=True)
        reader.start()
        long = replace(DO, headers={"x-long": "x" * 30_000_000})
        with pytest.raises(errors.PlaneUnavailable):
            asked.request(long, until=time.monotonic() + TIMEOUT_S)
        took_s = time.monotonic() - began_at
        over.set()
        reader.join(20)

    assert took_s < IN_TIME_S


async def test_post_of_a_worker_ends_in_time_though_its_answer_drips() -> None:
    with dripping(HEAD) as url:
        address = Address("127.0.0.1", int(url.rpartition(":")[2]), tls=None)
        with pytest.raises(TimeoutError):
            await address.post("/v1/work/claim", b"{}", login="", within_s=TIMEOUT_S)
        address.close()


class Drops(asyncio.Transport):
    """A connection on virtual time: a byte of a long answer every second."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._next: asyncio.TimerHandle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._say(HEAD)

    def abort(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _say(self, data: bytes) -> None:
        self._next = asyncio.get_running_loop().call_later(1.0, self._say, b"1")
        self._protocol.data_received(data)


def let_drip() -> None:
    async def connect(make: Callable[[], asyncio.Protocol], *_: object, **__: object) -> tuple[Any, Any]:
        protocol = make()
        protocol.connection_made(Drops(protocol))
        return None, protocol

    asyncio.get_running_loop().create_connection = connect  # type: ignore[method-assign, assignment]


@on_virtual_time
async def test_deadline_of_a_wait_is_kept_to_the_second(runtime: VirtualRuntime) -> None:
    let_drip()
    async with AsyncClient("http://plane", runtime=runtime) as plane:
        for call in (plane.wait("j", timeout=20), plane.run("t", timeout=20)):
            began_at = runtime.now()
            with pytest.raises(TimeoutError):
                await call
            assert runtime.now() - began_at == pytest.approx(20 + HEAR_S)


@on_virtual_time
async def test_answer_that_drips_fails_a_try_after_a_minute(runtime: VirtualRuntime) -> None:
    let_drip()
    async with AsyncClient("http://plane", runtime=runtime) as plane:
        began_at = runtime.now()
        with pytest.raises(errors.PlaneUnavailable):
            await plane.get("j")
    tries = len(PAUSES_S) + 1
    whole_s = tries * (ANSWER_S + WHOLE_S)
    assert whole_s <= runtime.now() - began_at <= whole_s + sum(PAUSES_S)
