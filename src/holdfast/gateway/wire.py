"""How a request arrives: whole, before long, or not at all. And how a response leaves: in one piece.

uvicorn waits for the rest of a request for as long as the caller likes, and keeps a head of any size: anybody who reaches
the socket, with a key or without, could fill the plane with connections, or with headers, until it has no room.

uvicorn writes the head of a response and its body apart. The first of the two wakes the caller for
nothing, and on a busy machine the plane is put aside for it: half of what an idle plane needed for an answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

Application = Callable[..., Awaitable[None]]
"""Of ASGI. It is passed on here, and not called: what it takes is between uvicorn and the gateway."""

WHOLE = "holdfast.whole"
"""An extension of a request's scope: its `answer(media, body)` answers 200 with no more headers than those must have, and is
True; or False, where the answer has to go the usual way."""


HEAD_S = 10.0
"""From a connection, or the first byte of another request on it, to the end of the request's head. What still comes of a
request that was answered already may take as long."""
BODY_S = 60.0
"""From there to the end of its body."""
READ_S = 60.0
"""Whoever has so much unread that no more is written to them, and reads nothing for so long, is hung up on: the rest of an
answer may be megabytes, and is kept for them."""
HEAD_BYTES_MAX = 64 << 10
"""More than that of a head that does not end is not kept; nor of what stands between and behind the pieces of a body."""
PIECE_BYTES = 16 << 10
"""No more is parsed at once, and nothing while a request waits behind another: one that is parsed takes a hundred times the
memory that it takes on the wire."""
_NO_LINGER = struct.pack("ii", 1, 0)
_OF_A_BODY = frozenset({b"content-length", b"transfer-encoding"})
_REFUSAL = b"connection: close\r\ncontent-length: 0\r\n\r\n"


class Gathering:
    """A transport that writes what it was given when it is told to, else once per turn of the loop."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._gathered: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered.append(data)

    def write_at_once(self, data: bytes) -> None:
        self.flush()
        self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._transport.write(b"".join(gathered))


class Protocol(HttpToolsProtocol):
    _patience: asyncio.TimerHandle | None = None
    """Runs while a request has begun to arrive and is not whole, and before the first one."""
    _unread: asyncio.TimerHandle | None = None
    """Runs while what was written last has not been read."""
    _head_bytes = 0
    """Since the head began, or since the last byte of a body."""
    _began = False
    """A first head has come: there is a cycle."""
    _served: RequestResponseCycle | None = None
    """Of the requests that have come, the one that is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._kept = bytearray()
        self._gathering = Gathering(transport)
        super().connection_made(cast(asyncio.Transport, self._gathering))
        self._patience = self.loop.call_later(HEAD_S, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        if self._unread is not None:
            self._unread.cancel()
        if self._served is not None and not self._served.response_complete:
            # uvicorn tells it to the last request that has come, which may be waiting behind this one.
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        self._unread = self.loop.call_later(READ_S, self._on_unread)
        super().pause_writing()

    def _on_unread(self) -> None:
        # Not closed, which would wait until all is read; nor left to the kernel, which would keep its part of it as long.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._kept or len(data) > PIECE_BYTES:
            self._kept += data
            self._read_kept()
        else:
            self._read(data)

    def _read_kept(self) -> None:
        while self._kept and not self.pipeline and not self.transport.is_closing():
            piece = bytes(self._kept[:PIECE_BYTES])
            del self._kept[:PIECE_BYTES]
            self._read(piece)
        if self._kept or self.pipeline:
            self.flow.pause_reading()

    def _read(self, data: bytes) -> None:
        before = self.scope
        super().data_received(data)
        cycle = self.cycle
        if (
            self._began
            and not cycle.more_body
            and not cycle.response_complete
            and cycle.scope is self.scope  # no other head has begun behind it
        ):
            # The usual case: it came whole, and is being answered.
            self._head_bytes = 0
            if self._patience is not None:
                self._wait_no_more()
        elif not self.transport.is_closing():
            self._not_whole(len(data), is_first=self._began and self.scope is not before)

    def _not_whole(self, came: int, *, is_first: bool) -> None:
        if is_first:
            self._head_bytes = 0  # nobody knows how much of it was of requests before it
        else:
            self._head_bytes += came
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431)
                return
        if self._patience is None and self.timeout_keep_alive_task is None:
            self._patience = self.loop.call_later(HEAD_S, self._on_late_head)

    def _is_in_head(self) -> bool:
        """What comes is of a head that has not ended: it gets a cycle of its own when it does."""
        return not self._began or self.cycle.scope is not self.scope

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _on_late_head(self) -> None:
        if self._is_in_head() or self.cycle.response_complete:
            self._refuse(408)
        else:
            self._patience = self.loop.call_later(BODY_S - HEAD_S, self._refuse, 408)

    def send_400_response(self, msg: str) -> None:
        if self._is_next_to_be_told():
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Say so, to whoever reads it, and hang up: there is no telling where another request would begin."""
        self._wait_no_more()
        if self._is_next_to_be_told():
            self.transport.write(STATUS_LINE[status] + _REFUSAL)
        self.transport.close()

    def _is_next_to_be_told(self) -> bool:
        """Whoever sent what is refused would take the refusal for the answer to that. Else it is taken for the answer to a
        request before it, which may have been obeyed, or for a part or a second one of an answer that was given."""
        if self._is_in_head():
            return not self._began or self.cycle.response_complete
        return not self.pipeline and not self.cycle.response_started

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser tells what comes behind a body in the same way, and uvicorn adds it to the headers, which are being gone by: a
        # proxy that has taken away what callers say of themselves has not looked there.
        if self._is_in_head():
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        # The parser takes what follows such a head for another protocol. We speak none, and go on with HTTP: a body would be
        # read as a request of its own, whatever is in it, and this one be obeyed without it.
        upgrading = self.parser.should_upgrade()
        if upgrading and any(name in _OF_A_BODY and value != b"0" for name, value in self.headers):
            raise ValueError("a request with a body cannot change the protocol")  # uvicorn answers 400, and hangs up
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._began = True
            self.cycle.keep_alive = self.cycle.keep_alive and not upgrading
            self.scope["extensions"] = {WHOLE: {"answer": partial(self._answer_whole, self.cycle)}}

    def _should_upgrade_to_ws(self) -> bool:
        # Whatever else is installed beside us: what it would serve is not asked for its origin, nor for a key.
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing that whoever runs the plane could do anything about, and everybody may ask."""

    def on_response_complete(self) -> None:
        # Before anything else that the loop has to do: somebody waits for it.
        self._gathering.flush()
        super().on_response_complete()
        if self._kept or self.pipeline:
            self._read_kept()

    def _answer_whole(self, cycle: RequestResponseCycle, media: bytes, body: bytes) -> bool:
        """What `cycle.send` makes of a head and a body. It looks through the head line by line, and most answers have the same."""
        if cycle.disconnected or not cycle.keep_alive or self.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        own = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        rest = b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (media, len(body))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self._gathering.write_at_once(b"".join((STATUS_LINE[200], own, rest, body)))
        cycle.on_response()
        return True
