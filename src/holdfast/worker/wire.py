"""What supervisor and child say to each other: length, then one message in MessagePack.

Payloads, results and progress stay JSON, as bytes: the supervisor passes them on without looking.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.plain_json import to_json
from holdfast.worker.errors import PlaneRefused

LENGTH = 4
READ = 65536
VALUE_BYTES_MAX = 16 << 20
"""No plane takes a request that is longer: what would be refused there need not fill the supervisor's memory first."""
MESSAGE_BYTES_MAX = 4 * VALUE_BYTES_MAX
"""Four letters that somebody printed there are a greater length than this."""


def to_value(value: object) -> bytes:
    """A handler's own value, to be passed on. Raises as `to_json`, and `PlaneRefused` if it is too large for any plane."""
    document = to_json(value)
    if len(document) > VALUE_BYTES_MAX:
        raise PlaneRefused("too-large", f"it has {len(document)} bytes; no plane takes more than {VALUE_BYTES_MAX}")
    return document


class Work(Struct, tag=True, array_like=True, frozen=True):
    """Supervisor → child: run the handler of this topic."""

    job_id: str
    fence: int
    topic: str
    payload: bytes
    attempt: int
    max_attempts: int
    labels: dict[str, str]
    risk: str
    trace: str
    decision: dict[str, Any] | None = None


class Begin(Struct, tag=True, array_like=True, frozen=True):
    """Supervisor → child, first: load the worker."""

    target: str
    path: list[str]


class CancelWork(Struct, tag=True, array_like=True, frozen=True):
    """Supervisor → child: somebody asked to stop. A signal comes with it, for a handler that is no coroutine."""


class Ready(Struct, tag=True, array_like=True, frozen=True):
    """Child → supervisor: the worker is loaded, and this is what it says about itself."""

    options: dict[str, Any]
    isolations: dict[str, str]


class Broken(Struct, tag=True, array_like=True, frozen=True):
    """Child → supervisor: the worker cannot be loaded."""

    reason: str


class Done(Struct, tag=True, array_like=True, frozen=True):
    """Child → supervisor: how the handler ended. `outcome` is one of `api.Outcome`; from a child succeeded, failed or
    cancelled. `traceback` is for the worker's log: the plane is told the message and the line alone."""

    outcome: str
    result: bytes = b"null"
    error: dict[str, Any] | None = None
    retryable: bool = True
    traceback: str = ""


class Prepare(Struct, tag=True, array_like=True, frozen=True):
    key: str
    idempotent: bool


class Commit(Struct, tag=True, array_like=True, frozen=True):
    key: str
    result: bytes


class Withdraw(Struct, tag=True, array_like=True, frozen=True):
    key: str


class Report(Struct, tag=True, array_like=True, frozen=True):
    progress: bytes


Request = Prepare | Commit | Withdraw | Report


class Ask(Struct, tag=True, array_like=True, frozen=True):
    """Child → supervisor: something for the plane. Answered under the same number."""

    number: int
    request: Request


class Answer(Struct, tag=True, array_like=True, frozen=True):
    """Supervisor → child. `refused` is the plane's code, or empty; the rest is for `Prepare`."""

    number: int = 0
    refused: str = ""
    detail: str = ""
    ruling: str = ""
    idempotency_key: str = ""
    result: bytes = b"null"


Order = Begin | Work | CancelWork | Answer
Word = Ready | Broken | Ask | Done

_encode = msgspec.msgpack.Encoder().encode
_orders = msgspec.msgpack.Decoder(Order)
_words = msgspec.msgpack.Decoder(Word)


def frame(message: Order | Word) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(LENGTH, "big") + body


class Frames:
    """Whole messages out of what arrives in pieces. Raises `DecodeError` where no message can begin."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._buffer += piece
        while len(self._buffer) >= LENGTH:
            end = LENGTH + int.from_bytes(self._buffer[:LENGTH], "big")
            if end > MESSAGE_BYTES_MAX:
                raise msgspec.DecodeError(f"a message of {end} bytes")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH:end])
            del self._buffer[:end]
            yield body


def word(body: bytes) -> Word:
    said: Word = _words.decode(body)
    return said


class ChildEnd:
    """The child's end: blocking, and readable from a loop as well."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Frames()
        self._orders: list[Order] = []

    def watch(self, loop: asyncio.AbstractEventLoop, read: Callable[[], None]) -> None:
        loop.add_reader(self._connection, read)
        self._connection.setblocking(True)  # uvloop has just changed that, and `say` may have a long message

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._connection)

    def say(self, message: Word) -> None:
        self._connection.sendall(frame(message))

    def wait_order(self) -> Order | None:
        """The next order; None if the supervisor is gone."""
        while not self._orders:
            if not self._receive():
                return None
        return self._orders.pop(0)

    def arrived(self) -> list[Order] | None:
        """When there is something to read: what it is. None if the supervisor is gone."""
        return self.take_read() if self._receive() else None

    def take_read(self) -> list[Order]:
        """What was read already, without a look at the connection."""
        orders, self._orders = self._orders, []
        return orders

    def _receive(self) -> bool:
        piece = self._connection.recv(READ)
        self._orders.extend(_orders.decode(body) for body in self._frames.feed(piece))
        return bool(piece)
