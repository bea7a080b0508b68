"""Sessions with a Postgres server that outlive the story in which they began.

A story begins seven of them or more, and to each the server has to teach itself every table and index anew, which costs it more
than most stories ask of it. So a session that its client takes leave of is wiped, as a pooler that lends whole sessions wipes it
(`DISCARD ALL`), and lent to the next client that introduces itself with the same words. One that is cut off, or left
in the middle of a transaction, ends as it always does.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from backends import Turns

from flow.wires import Wire, Wires

FAREWELL = b"X\0\0\0\4"
WIPE = b"Q\0\0\0\x10DISCARD ALL\0"
READY = b"Z\0\0\0\5I"
"""For the next question, and in no transaction."""
WIPED_S_MAX = 10.0
KEPT_MAX = 40
"""In all, of the hundred that the server lets in. The one that has waited longest ends first."""


class Talk(Turns, Protocol):
    is_in_transaction: bool


class Session(NamedTuple):
    connection: socket.socket
    greeting: bytes
    """All that the server said before it was ready."""


class KeptSessions:
    """Those that wait to be lent, by the server's port and by how their client introduced itself."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, bytes, Session]] = []

    def take(self, port: int, introduction: bytes) -> Session | None:
        for kept in reversed(self._idle):
            if kept[:2] == (port, introduction):
                self._idle.remove(kept)
                session = kept[2]
                # What has been wiped has nothing to say; if it can be read from all the same, its server has gone.
                if not select.select([session.connection], [], [], 0)[0]:
                    return session
                session.connection.close()
        return None

    def keep(self, port: int, introduction: bytes, session: Session) -> None:
        """Wipe it and keep it; or end it, if it does not answer as it should."""
        if not _is_wiped(session.connection):
            session.connection.close()
            return
        self._idle.append((port, introduction, session))
        if len(self._idle) > KEPT_MAX:
            _, _, oldest = self._idle.pop(0)
            oldest.connection.close()

    async def dial(self, wires: Wires, make: Callable[[], Any], turns: Talk, host: str, port: int) -> tuple[Any, Any]:
        """As `create_connection` of a loop."""
        wire = KeptWire(wires, make(), turns, self, port)
        wire.client.connection_made(wire)
        connect, protocol = asyncio.SelectorEventLoop.create_connection, lambda: wire
        session = self.take(port, wire.introduction)
        if session is None:
            await connect(wires.loop, protocol, host, port)
        else:
            await connect(wires.loop, protocol, sock=session.connection)
        wire.begin(session)
        return wire, wire.client


class KeptWire(Wire):
    """It has no transport before the client has introduced itself: what it says decides which one."""

    def __init__(self, wires: Wires, client: Any, turns: Talk, kept: KeptSessions, port: int) -> None:
        super().__init__(wires, client, turns)
        self._kept = kept
        self._port = port
        self._talk = turns
        self.introduction = b""
        self._greeting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._wires.open.add(self)

    def begin(self, session: Session | None) -> None:
        if session is not None:
            self.data_received(session.greeting)
        elif self.introduction:
            super().write(self.introduction)

    def data_received(self, data: bytes) -> None:
        if READY not in self._greeting:
            self._greeting += data
        super().data_received(data)

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self.introduction += bytes(data)
        elif bytes(data) == FAREWELL and not (self._talk.is_owed or self._talk.is_in_transaction):
            connection = self._transport.get_extra_info("socket").dup()
            self.abort()
            self._kept.keep(self._port, self.introduction, Session(connection, self._greeting))
        else:
            super().write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)


def _is_wiped(connection: socket.socket) -> bool:
    connection.settimeout(WIPED_S_MAX)
    try:
        connection.sendall(WIPE)
        said = b""
        # What it had been told to listen to may come first.
        while not said.endswith(READY):
            heard = connection.recv(65536)
            if not heard:
                return False
            said += heard
    except OSError:
        return False
    return b"DISCARD ALL\0" in said
