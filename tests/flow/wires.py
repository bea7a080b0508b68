"""Connections out of virtual time: to real servers, which take real time to answer, and to a Redis server in memory.

While a real server has not answered what it was asked, virtual time stands still: to those who wait, every answer comes at
once. What a server says without having been asked (a wake-up) comes when it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from locks.virtual import VirtualLoop
from simulation.redis_link import Socket
from simulation.redis_server import RedisServer, commands_of

from holdfast.locks.stores.redis_wire import Parser, Push

Dial = Callable[..., Coroutine[Any, Any, tuple[Any, Any]]]
"""`create_connection` of a loop."""
READY_FOR_QUERY = b"Z\x00\x00\x00\x05"


class PostgresTurns:
    """A server has answered when it says that it is ready for the next question; to the last word, when it hangs up."""

    def __init__(self) -> None:
        self.is_owed = False

    def sent(self, request: bytes) -> None:
        self.is_owed = True

    def received(self, reply: bytes) -> None:
        if reply[-6:-1] == READY_FOR_QUERY:
            self.is_owed = False


class RedisTurns:
    """A reply to each command; what is pushed answers none, but for the word that a subscription has begun."""

    def __init__(self) -> None:
        self._parser = Parser()
        self._owed = 0

    @property
    def is_owed(self) -> bool:
        return self._owed > 0

    def sent(self, request: bytes) -> None:
        self._owed += sum(1 for _ in commands_of(request))

    def received(self, reply: bytes) -> None:
        said = self._parser.feed(reply)
        self._owed -= sum(not isinstance(each, Push) or each[0] == b"subscribe" for each in said)


Turns = PostgresTurns | RedisTurns


class Wires:
    """The connections of one story. `turns`: by port, how a server there answers; `tell_time` is called before it is asked;
    `inside`: by host, who is not outside at all."""

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        turns: Mapping[int, type[Turns]],
        tell_time: Callable[[], None],
        inside: Mapping[str, Dial],
    ) -> None:
        self._loop = loop
        self._turns = turns
        self._inside = inside
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
                return await connect(self._loop, make, host, port, **options)
            _, wire = await connect(self._loop, lambda: Wire(self, make(), self._turns[port]()), host, port)
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


class Inside:
    """A client's connection to a Redis server in memory: an `asyncio.Transport`, as far as it is used."""

    def __init__(self, loop: VirtualLoop, server: RedisServer, client: Any) -> None:
        self._loop = loop
        self._server = server
        self._client = client
        self._is_over = False
        client.connection_made(self)

    def get_extra_info(self, _: str) -> Socket:
        return Socket()

    def write(self, request: bytes) -> None:
        if not self._is_over:
            self._hear(self._server.feed(request, self._hear))

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._server.forget(self._hear)
            self._loop.call_soon(self._client.connection_lost, None)

    def _hear(self, said: bytes) -> None:
        self._loop.call_soon(self._receive, said)

    def _receive(self, said: bytes) -> None:
        if not self._is_over:
            self._client.data_received(said)


def dial_inside(loop: VirtualLoop, server: RedisServer) -> Dial:
    async def dial(make: Callable[[], Any], *_: Any, **__: Any) -> tuple[Any, Any]:
        client = make()
        return Inside(loop, server, client), client

    return dial
