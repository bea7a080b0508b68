"""How a response leaves: in one piece.

uvicorn writes the head of a response and its body apart. The first of the two wakes the caller for
nothing, and on a busy machine the plane is put aside for it: half of what an idle plane needed for an answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

WHOLE = "holdfast.whole"
"""An extension of a request's scope: its `answer(media, body)` answers 200 with no more headers than those must have, and is
True; or False, where the answer has to go the usual way."""


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
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._gathering = Gathering(transport)
        super().connection_made(cast(asyncio.Transport, self._gathering))

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.scope["extensions"] = {WHOLE: {"answer": partial(self._answer_whole, self.cycle)}}

    def on_response_complete(self) -> None:
        # Before anything else that the loop has to do: somebody waits for it.
        self._gathering.flush()
        super().on_response_complete()

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
