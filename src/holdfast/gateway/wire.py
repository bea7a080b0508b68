"""How a response leaves: in one piece.

uvicorn writes the head of a response and its body apart. The first of the two wakes the caller for
nothing, and on a busy machine the plane is put aside for it: half of what an idle plane needed for an answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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

    def on_response_complete(self) -> None:
        # Before anything else that the loop has to do: somebody waits for it.
        self._gathering.flush()
        super().on_response_complete()
