"""One connection to a plane, for code without a loop: HTTP/1.1 on a blocking socket, one exchange after the other.

The standard library's client sends the head of a request and its body apart, so that a plane wakes up twice for it, and
reads headers as those of a mail: together a tenth of what a caller waits for a job.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from holdfast.http1.answer import Answer, BrokenExchange, Reply
from holdfast.locks.runtime import SYSTEM

READ = 65536
WRITE = 1 << 20


class Patience:
    """How long somebody waits: for anything to happen, and in all."""

    def __init__(self, silence_s: float, *, until: float) -> None:
        self._silence_s = silence_s
        self._until = until

    def left_s(self) -> float:
        """For the next thing to happen. Raises `TimeoutError`."""
        left_s = min(self._silence_s, self._until - SYSTEM.now())
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class Connection:
    def __init__(self, link: socket.socket, patience: Patience) -> None:
        self.link = link
        self.patience = patience
        self.answer = Answer()
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        """For another exchange, once the last one is complete."""
        return self.answer.may_follow and not self._is_closed

    def send(self, request: bytes) -> None:
        self.answer.expect()
        rest = memoryview(request)
        while rest:
            self.link.settimeout(self.patience.left_s())
            rest = rest[self.link.send(rest[:WRITE]) :]

    def wait_head(self) -> None:
        while not self.answer.has_head:
            self._read()

    def wait_reply(self) -> Reply:
        while not self.answer.is_complete:
            self._read()
        return self.answer.reply()

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises `BrokenExchange` if its end does not."""
        while True:
            yield self.answer.take()
            if self.answer.is_complete:
                return
            self._read()

    def close(self) -> None:
        self._is_closed = True
        self.link.close()

    def _read(self) -> None:
        self.link.settimeout(self.patience.left_s())
        data = self.link.recv(READ)
        if not data:
            raise BrokenExchange("the answer ended too early")
        self.answer.feed(data)
