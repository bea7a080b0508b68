"""One connection per event loop to a Redis server: one write per tick, replies matched in order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.port import WakeCallback
from holdfast.locks.stores.redis_vigil import Vigil
from holdfast.locks.stores.redis_wire import (
    SCRIPT,
    Address,
    Caller,
    Parser,
    Push,
    Reply,
    ReplyError,
    command,
    decoded,
    greeting_refusal,
    in_parts,
    lines_of,
    refusal,
    script_run,
)

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0

MakeError = Callable[[], Exception]


class Question:
    """A command that waits for its reply. `deadline` is on the loop's clock."""

    __slots__ = ("deadline", "future")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answer(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, make: MakeError) -> None:
        if not self.future.done():
            self.future.set_exception(make())


class Run:
    """One run of the script: items that are applied together, in order.

    Each item has its future; or, if `whole`, a single one gets the answer's lines.
    """

    __slots__ = ("deadline", "futures", "items", "keys", "moves", "names", "subject", "whole")

    def __init__(
        self,
        caller: Caller,
        keys: list[str],
        items: list[str],
        futures: list[asyncio.Future[Any]],
        *,
        whole: bool = False,
    ) -> None:
        self.keys = keys
        self.items = items
        self.futures = futures
        self.whole = whole
        self.names = caller.names_encoded
        self.subject = caller.subject
        self.deadline = asyncio.get_running_loop().time() + caller.timeout_s
        self.moves = 0

    def answer(self, reply: Reply) -> None:
        lines = lines_of(reply)
        if self.whole:
            if not self.futures[0].done():
                self.futures[0].set_result(lines)
            return
        for future, line in zip(self.futures, lines, strict=True):
            if future.done():
                continue  # its caller was cancelled
            if line[0] == "E":
                future.set_exception(refusal(self.subject, line[1:]))
            else:
                future.set_result(decoded(line))

    def fail(self, make: MakeError) -> None:
        for future in self.futures:
            if not future.done():
                # An error object for each: one that is raised in many tasks collects their frames.
                future.set_exception(make())


class Connection(asyncio.Protocol):
    """A live connection. What is in flight when it ends, ends with an unknown outcome."""

    def __init__(self, link: WireLink, caller: Caller) -> None:
        self._link = link
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._parser = Parser()
        self._pending: deque[Question | Run] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._vigil: Vigil | None = None
        self._awake = False
        self._why_ended = "connection lost"
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not subclasses of asyncio's
        conn = transport.get_extra_info("socket")
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._vigil = Vigil(conn.fileno(), self._caller.runtime.now)

    def idle(self) -> bool:
        return not self._pending

    def run(self, runs: Sequence[Run], *, load: bool = False) -> None:
        caller = self._caller.encoded
        self._send(runs, b"".join([script_run(run.names, run.keys, caller, run.items, load=load) for run in runs]))
        if len(self._pending) == 1 and len(runs[0].keys) == 1:
            self._stay_awake()

    def ask(self, *words: str) -> asyncio.Future[Reply]:
        """Raises `ReplyError` for an error reply."""
        question = Question(self._loop.time() + self._caller.timeout_s)
        self._send([question], command(*words))
        return question.future

    def subscribe(self) -> None:
        # Answered by a push, so nothing waits for it in the queue of replies.
        assert self._transport is not None
        self._transport.write(command("SUBSCRIBE", self._caller.channel))

    def _send(self, requests: Sequence[Question | Run], encoded: bytes) -> None:
        assert self._transport is not None
        self._pending.extend(requests)
        self._transport.write(encoded)
        if self._timer is None:
            self._timer = self._loop.call_at(self._pending[0].deadline, self._drop_overdue)

    def _stay_awake(self) -> None:
        """A lone item: have the loop turn, not sleep, until it is answered. Others run as ever."""
        assert self._vigil is not None
        if not self._awake and self._vigil.begins():
            self._awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        assert self._vigil is not None
        answered = not self._pending or self._vigil.look()
        if not answered and self._vigil.goes_on() and len(self._pending) == 1:
            self._loop.call_soon(self._look)
            return
        # What there is to read, the transport brings in the loop's next turn.
        self._awake = False
        self._vigil.ended(answered=answered)

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._parser.feed(data):
                if isinstance(reply, Push):
                    self._link.pushed(reply)
                elif isinstance(reply, ReplyError):
                    self._refused(self._pending.popleft(), reply)
                else:
                    self._pending.popleft().answer(reply)
        except (ValueError, IndexError):
            self.drop("the server does not answer as a Redis server would")

    def _refused(self, request: Question | Run, reply: ReplyError) -> None:
        if isinstance(request, Question):
            request.fail(lambda: reply)
        elif reply.code == "NOSCRIPT":
            # Restarted, failed over or flushed: it did not run, so sending it again is safe.
            self.run([request], load=True)
        elif reply.code == "MOVED" and self._link.on_moved is not None:
            self._link.on_moved(request, reply)
        else:
            request.fail(partial(refusal, request.subject, str(reply)))
            if reply.code == "READONLY":
                self.drop("the server has become a replica")  # the next connection finds the primary

    def eof_received(self) -> None:
        self._link.lost(self)

    def drop(self, why: str) -> None:
        # Nothing more is sent here: the transport would take it and forget it.
        self._link.lost(self)
        self._why_ended = why
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.lost(self)
        for request in self._pending:
            request.fail(partial(Unavailable, self._caller.subject, self._why_ended, applied=None))
        self._pending.clear()
        self.ended.set_result(None)

    def _drop_overdue(self) -> None:
        """One timer per connection. A late reply would be taken for the answer to the next
        request, so the connection goes with the first request that is overdue."""
        self._timer = None
        if not self._pending:
            return
        if self._pending[0].deadline <= self._loop.time():
            self.drop(f"no answer within {self._caller.timeout_s} s")
        else:
            self._timer = self._loop.call_at(self._pending[0].deadline, self._drop_overdue)


class WireLink:
    """Runs the script on one server. Connects when first used and again after a loss; sends
    nothing twice but what the server said it did not run."""

    def __init__(self, caller: Caller, locate: Callable[[], Awaitable[Address]], wake: WakeCallback) -> None:
        self._caller = caller
        self._locate = locate
        self._wake = wake
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[Run] = []
        self._down: MakeError | None = None
        self._retry_at = 0.0
        self._failures = 0
        self._listening = False
        self._closed = False
        #: For a cluster: what belongs to another server, and that this one is gone.
        self.on_moved: Callable[[Run, ReplyError], None] | None = None
        self.on_down: Callable[[], None] | None = None

    async def open(self) -> None:
        self._closed = False
        if self._connection is None:
            self._connect_soon()
            assert self._connecting is not None
            await asyncio.wait([self._connecting])
        if self._connection is None:
            assert self._down is not None
            raise self._down()

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            connection = self._connection
            connection.drop("the store was closed")
            await connection.ended

    def idle(self) -> bool:
        """True if the server is ours to ask and has nothing else of ours to do."""
        return self._connection is not None and self._connection.idle()

    def plan(self, keys: list[str]) -> list[Sequence[int]]:
        """Which items may share a run, by their indices."""
        return in_parts(range(len(keys)))

    def send(self, runs: Sequence[Run]) -> None:
        """Send the runs in one write. Each is answered or failed by its deadline."""
        if self._connection is not None:
            self._connection.run(runs)
        elif self._closed:
            self._fail(runs, self._unavailable("the store is closed"))
        elif self._down is not None and asyncio.get_running_loop().time() < self._retry_at:
            self._fail(runs, self._down)
        else:
            self._waiting += runs
            self._connect_soon()

    async def ask(self, *words: str) -> Reply:
        """A command that only reads."""
        if self._closed:
            raise self._unavailable("the store is closed")()
        await self.open()
        assert self._connection is not None
        try:
            return await self._connection.ask(*words)
        except ReplyError as reply:
            raise refusal(self._caller.subject, str(reply)) from None

    def node(self, key: str) -> WireLink:
        """The server that has the key."""
        return self

    def nodes(self) -> list[WireLink]:
        return [self]

    def history(self, key: str) -> str:
        return self._caller.names()[1]

    def listen(self, key: str) -> None:
        """From now on hear of grants to our waiters. Those who queued before the subscription
        stood are told to look again when it does."""
        if not self._listening:
            self._listening = True
            if self._connection is not None:
                self._connection.subscribe()

    def pushed(self, message: Push) -> None:
        if message[0] == b"subscribe":
            self._wake("", "")
        elif message[0] == b"message" and isinstance(message[2], bytes):
            token, _, key = message[2].decode("utf-8", "replace").partition(" ")
            self._wake(key, token)

    def lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self._tell_down()

    def _connect_soon(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        why = self._unavailable("the store is closed")
        connection = Connection(self, self._caller)
        try:
            async with asyncio.timeout(self._caller.timeout_s):
                address = await self._locate()
                await self._greet(connection, address)
            self._connection = connection
        except ReplyError as reply:
            why = partial(greeting_refusal, self._caller.subject, str(reply), address.password)
        except TimeoutError:
            why = self._unavailable(f"no connection within {self._caller.timeout_s} s")
        except (OSError, LockError) as failed:
            why = self._unavailable(f"cannot connect: {failed}")
        finally:
            # Nothing is awaited from here on: whoever comes next finds a connection or a reason.
            self._connecting = None
            waiting, self._waiting = self._waiting, []
            if self._connection is None:
                connection.drop("not used")
                self._back_off(why)
                self._fail(waiting, why)
            else:
                self._down, self._failures = None, 0
                if self._listening:
                    connection.subscribe()
                if waiting:
                    self.send(waiting)

    async def _greet(self, connection: Connection, address: Address) -> None:
        loop = asyncio.get_running_loop()
        if address.path:
            await loop.create_unix_connection(lambda: connection, address.path)
        else:
            await loop.create_connection(lambda: connection, address.host, address.port, ssl=address.tls)
        await asyncio.gather(*(connection.ask(*words) for words in address.greeting()))
        await connection.ask("SCRIPT", "LOAD", SCRIPT)

    def _back_off(self, why: MakeError) -> None:
        """While the server is down callers fail at once; one of them tries again now and then."""
        pause = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2**self._failures)
        self._down = why
        self._retry_at = asyncio.get_running_loop().time() + self._caller.runtime.jitter(pause)
        self._failures = min(self._failures + 1, 10)
        self._tell_down()

    def _tell_down(self) -> None:
        if self.on_down is not None and not self._closed:
            self.on_down()

    def _unavailable(self, detail: str) -> MakeError:
        return partial(Unavailable, self._caller.subject, detail, applied=False)

    @staticmethod
    def _fail(runs: Sequence[Run], make: MakeError) -> None:
        for run in runs:
            run.fail(make)
