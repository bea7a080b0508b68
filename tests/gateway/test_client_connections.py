"""The connections of both clients: what is kept, and what is known when one breaks."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from holdfast import api, errors
from holdfast.client import AsyncClient, Client
from holdfast.client.asks import Ask, get_ask, post_ask
from holdfast.client.async_connections import AsyncConnections
from holdfast.client.connections import Connections
from holdfast.client.replies import Plane
from holdfast.http1.answer import Reply

Serve = Callable[[socket.socket, bytes], None]
"""Answers the request on a connection."""

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
READ = get_ask("/v1/thing", bytes)
DO = post_ask("/v1/thing", bytes)


class Neighbour:
    """A server that is no plane: it hears requests, and does with each connection what it is told to."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self.heard: list[bytes] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._served: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._served = connection
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while request := connection.recv(65536):
            self.heard.append(request)
            try:
                self._serve(connection, request)
            except StopIteration:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._served is not None:
            with suppress(OSError):
                self._served.shutdown(socket.SHUT_RDWR)  # a client may keep it
        self._thread.join(20)


@contextmanager
def neighbour(serve: Serve) -> Iterator[Neighbour]:
    there = Neighbour(serve)
    try:
        yield there
    finally:
        there.close()


def plane_at(url: str) -> Plane:
    return Plane.at(url, api_key="", tenant="default", actor="")


class InLoop:
    """Those for code in a loop, which stands still while nobody asks: what comes meanwhile is not seen."""

    def __init__(self, plane: Plane) -> None:
        self._runner = asyncio.Runner()
        self._asked = AsyncConnections(plane)

    def request(self, ask: Ask[Any]) -> Reply:
        return self._runner.run(self._asked.request(ask))

    def stream(self, target: str, *, silence_s: float) -> Iterator[str]:
        lines = self._asked.stream(target, silence_s=silence_s)

        async def next_line() -> str | None:
            return await anext(lines, None)

        while (line := self._runner.run(next_line())) is not None:
            yield line

    def close(self) -> None:
        async def close() -> None:
            self._asked.close()
            await asyncio.sleep(0)  # their transports end in the next turn of the loop

        self._runner.run(close())
        self._runner.close()


Connect = Callable[[str], Connections | InLoop]


@pytest.fixture(params=[Connections, InLoop])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[Connections | InLoop] = []

    def connect(url: str) -> Connections | InLoop:
        made.append(request.param(plane_at(url)))
        return made[-1]

    yield connect
    for connections in made:
        connections.close()


def test_connection_of_a_process_is_not_used_by_its_fork() -> None:
    """Both would write to it, and each might read the other's answer."""
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        asked = Connections(plane_at(there.url))
        asked.request(DO)
        if (fork := os.fork()) == 0:
            # The neighbour serves one connection at a time: that of the parent. Another one is left waiting.
            with suppress(errors.PlaneUnavailable):
                asked.request(replace(DO, answer_s=0.2))
            os._exit(0)
        os.waitpid(fork, 0)
        assert len(there.heard) == 1
        asked.close()


def test_connection_is_used_again(connect: Connect) -> None:
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        asked = connect(there.url)
        assert [asked.request(DO).body for _ in range(3)] == [b"{}"] * 3

    assert there.connections == 1


def test_request_arrives_in_one_piece(connect: Connect) -> None:
    """Each piece would wake the plane."""
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        asked = connect(there.url)
        asked.request(post_ask("/v1/thing", bytes, api.Goodbye(worker="w", gone=True)))

    [request] = there.heard
    assert request.endswith(b'\r\n\r\n{"worker":"w","gone":true}')


def test_answer_is_what_comes_after_a_word_in_between(connect: Connect) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n"
    with neighbour(lambda connection, _: connection.sendall(early + OK)) as there:
        asked = connect(there.url)
        assert [asked.request(READ).status for _ in range(2)] == [200, 200]

    assert there.connections == 1


def test_connection_that_says_more_than_it_was_asked_is_not_believed(connect: Connect) -> None:
    with neighbour(lambda connection, _: connection.sendall(OK * 2)) as there:
        asked = connect(there.url)
        with pytest.raises(errors.PlaneUnavailable):
            asked.request(READ)


def test_connection_that_the_plane_has_ended_meanwhile_is_not(connect: Connect) -> None:
    """Else nobody would know whether what was said on it was heard."""
    ended = threading.Event()

    def answer_once(connection: socket.socket, _: bytes) -> None:
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_WR)
        ended.set()
        raise StopIteration

    with neighbour(answer_once) as there:
        asked = connect(there.url)
        for _ in range(3):
            assert asked.request(DO).status == 200
            assert ended.wait(20)
            ended.clear()

    assert there.connections == 3


@pytest.mark.parametrize("part", [b"", OK[:20], OK[:-1]])
def test_after_a_broken_answer_nobody_knows_but_who_only_read(connect: Connect, part: bytes) -> None:
    def break_off(connection: socket.socket, _: bytes) -> None:
        connection.sendall(part)
        raise StopIteration

    with neighbour(break_off) as there:
        asked = connect(there.url)
        with pytest.raises(errors.PlaneUnavailable) as done:
            asked.request(DO)
        with pytest.raises(errors.PlaneUnavailable) as read:
            asked.request(READ)

    assert (done.value.applied, read.value.applied) == (None, False)
    assert there.url in str(done.value)


def test_nobody_there_is_known_to_have_done_nothing(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    with pytest.raises(errors.PlaneUnavailable) as never:
        connect(url).request(DO)

    assert never.value.applied is False


def test_stream_that_is_cut_gives_whole_lines_only(connect: Connect) -> None:
    def begin(connection: socket.socket, _: bytes) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            b"11\r\nid: 1\ndata: \xe2\x80\xa8 \n\r\n5\r\nid"
        )
        raise StopIteration

    with neighbour(begin) as there:
        lines = connect(there.url).stream("/v1/events", silence_s=20)
        assert [next(lines), next(lines)] == ["id: 1", "data: \u2028 "]
        with pytest.raises(errors.PlaneUnavailable):
            next(lines)


def test_plane_behind_a_path_of_a_proxy(connect: Connect) -> None:
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        asked = connect(there.url + "/holdfast/")
        asked.request(READ)

    assert there.heard[0].startswith(b"GET /holdfast/v1/thing HTTP/1.1\r\n")


def test_plane_behind_a_path_that_is_no_ascii(connect: Connect) -> None:
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        connect(there.url + "/fär%20alle").request(READ)

    assert there.heard[0].startswith(b"GET /f%C3%A4r%20alle/v1/thing HTTP/1.1\r\n")


def test_name_of_a_plane_is_asked_for_as_names_are() -> None:
    assert (
        str(Plane.at("http://Bücher.example:7070", api_key="", tenant="default", actor=""))
        == "http://xn--bcher-kva.example:7070"
    )


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7070",
        "ftp://plane",
        "http://",
        "http://plane:port",
        "http://a..b:7070",
        f"http://{'a' * 64}.example",
        "http://plane:7070/a b",
        "http://plane:7070\n",
        "http://\udcff:7070",
        "http://plane:7070/\udcff",
    ],
)
@pytest.mark.parametrize("face", [Client, AsyncClient])
def test_url_of_no_plane_is_refused(face: type[Client | AsyncClient], url: str) -> None:
    with pytest.raises(errors.Invalid, match="must look like http://"):
        face(url)


def test_key_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    with pytest.raises(errors.Invalid, match="authorization") as refused:
        Client(api_key="s3cret\nX-Other: 1")

    assert "s3cret" not in str(refused.value)


def test_name_that_cannot_be_sent_is_refused_before_anything_is() -> None:
    with neighbour(lambda connection, _: connection.sendall(OK)) as there:
        with Client(there.url) as client, pytest.raises(errors.Invalid, match="holdfast-actor"):
            client.submit("t", actor="ann\nX-Other: 1")

    assert there.heard == []


def test_watch_of_what_is_no_plane_says_so() -> None:
    with neighbour(lambda connection, _: connection.sendall(OK)) as other, Client(other.url) as client:
        with pytest.raises(errors.PlaneUnavailable, match="does not answer like a plane") as told:
            next(client.watch())
        assert str(told.value).count(other.url) == 1


IN_THREADS = """
import sys, threading
from holdfast.api.incidents import IncidentPage
from holdfast.api.runs import RunPage
from holdfast.api.schedules import SchedulePage
from holdfast.api.webhooks import WebhookPage
from holdfast.client.asks import read_as

sys.setswitchinterval(1e-6)
start = threading.Barrier(8)

def read():
    start.wait()
    for page in (RunPage, IncidentPage, SchedulePage, WebhookPage):
        read_as(page)(b'{"items": [], "next_cursor": null}')

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_read_their_first_answers_at_the_same_time() -> None:
    """In a process of its own, which crashed."""
    assert subprocess.run([sys.executable, "-c", IN_THREADS], check=False).returncode == 0
