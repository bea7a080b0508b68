"""HTTP for code without a loop, on the standard library: a general client takes four times the processor time for it."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Generator
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from holdfast.client import replies
from holdfast.client.asks import Ask
from holdfast.client.replies import Plane, Reply
from holdfast.locks.runtime import SYSTEM

IDLE_MAX = 20


class Connections:
    """To one plane, kept for the next request. May be shared by threads."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._idle: list[tuple[HTTPConnection, float]] = []
        """With the time since which nobody uses it."""
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def request(self, ask: Ask[Any]) -> Reply:
        """Raises `PlaneUnavailable`."""
        connection = self._take(ask.answer_s)
        try:
            response = self._send(connection, ask.method, ask.target(), ask.content(), ask.sent_headers())
            reply = _reply(response)
        except (OSError, HTTPException) as why:
            connection.close()
            raise replies.unreachable(self._plane, why, method=ask.method) from why
        except BaseException:
            connection.close()  # the answer may still come, and would be taken for the next request's
            raise
        self._give_back(connection)
        return reply

    def stream(self, target: str, *, silence_s: float) -> Generator[str]:
        """The lines of an answer, whole ones only. Raises what the plane says instead, and `PlaneUnavailable`."""
        connection = self._connect(silence_s)
        try:
            response = self._send(connection, "GET", target, None, {})
            if response.status >= 400:
                raise replies.to_error(_reply(response), self._plane)
            with response:
                while (line := response.readline()).endswith(b"\n"):
                    yield line.decode().rstrip("\r\n")
        except (OSError, HTTPException) as why:
            raise replies.unreachable(self._plane, why) from why
        finally:
            connection.close()

    def _send(
        self, connection: HTTPConnection, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> HTTPResponse:
        connection.request(method, self._plane.path + target, body, {**self._plane.headers, **headers})
        return connection.getresponse()

    def _take(self, answer_s: float) -> HTTPConnection:
        while kept := self._pop():
            connection, since = kept
            if SYSTEM.now() - since < replies.KEEP_S and _is_silent(connection):
                connection.sock.settimeout(answer_s)
                return connection
            connection.close()
        return self._connect(answer_s)

    def _pop(self) -> tuple[HTTPConnection, float] | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: HTTPConnection) -> None:
        is_open = connection.sock is not None  # the plane may have asked to close it
        with self._lock:
            if is_open and len(self._idle) < IDLE_MAX:
                self._idle.append((connection, SYSTEM.now()))
                return
        connection.close()

    def _connect(self, answer_s: float) -> HTTPConnection:
        plane = self._plane
        if plane.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(plane.host, plane.port, timeout=answer_s, context=self._tls)
        else:
            connection = HTTPConnection(plane.host, plane.port, timeout=answer_s)
        try:
            connection.connect()
        except OSError as why:
            raise replies.unreachable(plane, why, sent=False) from why
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _is_silent(connection: HTTPConnection) -> bool:
    """Nothing has come since the last answer: not even its end, as from a plane that was stopped."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _reply(response: HTTPResponse) -> Reply:
    with response:
        if response.length is None and not response.chunked:
            raise HTTPException("the answer does not say how long it is")  # a cut head looks like that
        return Reply(response.status, response.reason, response.getheader("retry-after", ""), response.read())
