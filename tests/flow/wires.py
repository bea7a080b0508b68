"""Connections out of virtual time, to real servers, which take real time to answer.

While a real server has not answered what it was asked, virtual time stands still: to those who wait, every answer comes at
once. What a server says without having been asked (a wake-up) comes when it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from backends import Dial, Turns
from locks.virtual import VirtualLoop


class Wires:
    """The connections of one story. `turns`: by port, how a server there answers; `tell_time` is called before it is asked;
    `inside`: by host, who is not outside at all; `lent`: by port, who dials instead."""

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        turns: Mapping[int, Callable[[], Turns]],
        tell_time: Callable[[], None],
        inside: Mapping[str, Dial],
        lent: Mapping[int, Dial],
    ) -> None:
        self.loop = loop
        self._turns = turns
        self._inside = inside
        self._lent = lent
        self.tell_time = tell_time
        self.open: set[Wire] = set()
        self._calls = 0
        loop.reach_out(self._dial, self._is_owed)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time stands still during a call that is known to end."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _is_owed(self) -> bool:
        return self._calls > 0 or any(wire.turns.is_owed for wire in self.open)

    async def _dial(self, make: Callable[[], Any], host: str, port: int, **options: Any) -> tuple[Any, Any]:
        if host in self._inside:
            return await self._inside[host](make)
        connect = asyncio.SelectorEventLoop.create_connection
        with self.waiting():
            if port not in self._turns:
                return await connect(self.loop, make, host, port, **options)
            turns = self._turns[port]()
            if port in self._lent:
                return await self._lent[port](self, make, turns, host, port)
            _, wire = await connect(self.loop, lambda: Wire(self, make(), turns), host, port)
        return wire, wire.client


class Wire(asyncio.Protocol):
    """Stands between a client's protocol and its transport, and is each to the other."""

    def __init__(self, wires: Wires, client: Any, turns: Turns) -> None:
        self._wires = wires
        self._transport: Any = None
        self.client = client
        self.turns = turns

    # -- as a protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._wires.open.add(self)
        self.client.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self.turns.received(data)
        self.client.data_received(data)

    def eof_received(self) -> Any:
        return self.client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wires.open.discard(self)
        self.client.connection_lost(exc)

    def pause_writing(self) -> None:
        self.client.pause_writing()

    def resume_writing(self) -> None:
        self.client.resume_writing()

    # -- as a transport ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        request = bytes(data)
        self._wires.tell_time()
        self.turns.sent(request)
        self._transport.write(request)

    def abort(self) -> None:
        self._wires.open.discard(self)
        self._transport.abort()

    def close(self) -> None:
        self._wires.open.discard(self)
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
