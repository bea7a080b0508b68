"""HTTP for code without a loop: a general client takes four times the processor time for it."""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
from collections.abc import Generator
from functools import cached_property
from typing import Any

from holdfast.client import replies
from holdfast.client.asks import Ask
from holdfast.client.exchange import Connection, Patience
from holdfast.client.replies import Plane
from holdfast.errors import PlaneUnavailable
from holdfast.http1.answer import BrokenExchange, Reply
from holdfast.locks.runtime import FORKS, SYSTEM

IDLE_MAX = 20


class Connections:
    """To one plane, kept for the next request. May be shared by threads; a fork makes its own."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._idle: list[tuple[Connection, float]] = []
        """With the time since which nobody uses it."""
        self._lock = threading.Lock()
        self._generation = FORKS.generation

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def request(self, ask: Ask[Any], *, until: float = math.inf) -> Reply:
        """Raises `PlaneUnavailable`, by `until` at the latest, but for the time that the name of the plane takes."""
        request = self._plane.encoded(ask)
        whole_until = SYSTEM.now() + ask.answer_s + replies.WHOLE_S
        connection = self._take(Patience(ask.answer_s, until=min(until, whole_until)))
        try:
            connection.send(request)
            reply = connection.wait_reply()
        except (OSError, BrokenExchange) as why:
            connection.close()
            raise replies.unreachable(self._plane, why, method=ask.method) from why
        except BaseException:
            connection.close()  # the answer may still come, and would be taken for the next request's
            raise
        self._give_back(connection)
        return reply

    def stream(self, target: str, *, silence_s: float) -> Generator[str]:
        """The lines of an answer, whole ones only. Raises what the plane says instead, and `PlaneUnavailable`."""
        # A stream may go on for ever, what comes before it may not.
        connection = self._connect(Patience(silence_s, until=SYSTEM.now() + silence_s))
        try:
            connection.send(self._plane.encoded_look(target))
            connection.wait_head()
            if connection.answer.status >= 400:
                raise replies.to_error(connection.wait_reply(), self._plane)
            connection.patience = Patience(silence_s, until=math.inf)
            replies.check_stream(connection.answer.content_type, self._plane)
            rest = b""
            for piece in connection.pieces():
                lines, rest = replies.whole_lines(rest + piece)
                yield from lines
        except PlaneUnavailable:
            raise  # which is an OSError as well
        except (OSError, BrokenExchange) as why:
            raise replies.unreachable(self._plane, why) from why
        finally:
            connection.close()

    def _take(self, patience: Patience) -> Connection:
        while kept := self._pop():
            connection, since = kept
            if SYSTEM.now() - since < replies.KEEP_S and _is_silent(connection):
                connection.patience = patience
                return connection
            connection.close()
        return self._connect(patience)

    def _pop(self) -> tuple[Connection, float] | None:
        if self._generation != FORKS.generation:
            # A fork: they are the parent's too, and each might read the other's answer. So may the lock be.
            self._generation, self._lock, self._idle = FORKS.generation, threading.Lock(), []
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.is_usable and len(self._idle) < IDLE_MAX:
                self._idle.append((connection, SYSTEM.now()))
                return
        connection.close()

    def _connect(self, patience: Patience) -> Connection:
        plane, link = self._plane, None
        try:
            link = _connected(plane.host, plane.port or plane.usual_port, patience)
            # Else the end of a long request waits until its beginning was heard.
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if plane.scheme == "https":
                link.settimeout(patience.left_s())
                link = self._tls.wrap_socket(link, server_hostname=plane.host)
        except OSError as why:
            if link is not None:
                link.close()
            raise replies.unreachable(plane, why, sent=False) from why
        return Connection(link, patience)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _connected(host: str, port: int, patience: Patience) -> socket.socket:
    """To the first of its addresses that takes it: the standard library would wait for each as long as for all."""
    why: OSError = ConnectionError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(patience.left_s())
            link.connect(address)
        except OSError as error:
            link.close()
            why = error
        else:
            return link
    raise why


def _is_silent(connection: Connection) -> bool:
    """Nothing has come since the last answer: not even its end, as from a plane that was stopped."""
    poll = select.poll()
    poll.register(connection.link, select.POLLIN)
    return not poll.poll(0)
