"""A connection to a Redis server: questions in order, replies matched to them, overdue ones given up."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from holdfast.locks.errors import Unavailable
from holdfast.locks.stores.redis.refusals import refusal
from holdfast.locks.stores.redis.vigil import Vigil
from holdfast.locks.stores.redis.wire import (
    Caller,
    Parser,
    Push,
    Reply,
    ReplyError,
    command,
    decoded,
    lines_of,
    script_run,
)

MakeError = Callable[[], Exception]

BUFFER_BYTES = 2**16
ASKING = command("ASKING")
TURNED_AWAY = ("MOVED", "ASK", "TRYAGAIN")
"""Answers of a cluster to a run that was not begun: its slot is elsewhere, or on its way there."""


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


class Unheard(Question):
    """A question before a run whose own answer says enough."""

    __slots__ = ()

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def answer(self, reply: Reply) -> None: ...

    def fail(self, make: MakeError) -> None: ...


class Run:
    """One run of the script: items that are applied together, in order.

    Each item has its future; or, if `whole`, a single one gets the answer's lines.
    """

    __slots__ = ("asking", "deadline", "further", "futures", "items", "keys", "moves", "names", "subject", "whole")

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
        #: In a cluster: more keys for it to look at, how often the slot was elsewhere, and whether to ask a server that is
        #: only about to get it.
        self.further: list[str] = []
        self.moves = 0
        self.asking = False

    def leave_out_the_gone(self) -> bool:
        """Before a run that was not begun is sent again, later: whoever was cancelled has by now asked to undo what was not
        done, and it must not be done after that. False if nobody is left."""
        waiting = [i for i, future in enumerate(self.futures) if not future.done()]
        if len(waiting) < len(self.futures) and not self.whole:
            self.keys = [self.keys[i] for i in waiting]
            self.items = [self.items[i] for i in waiting]
            self.futures = [self.futures[i] for i in waiting]
        return bool(waiting)

    def answer(self, reply: Reply) -> None:
        lines = lines_of(reply)
        if self.whole:
            if not self.futures[0].done():
                self.futures[0].set_result(lines)
            return
        for future, line in zip(self.futures, lines, strict=True):
            if future.done():
                continue  # its caller was cancelled
            if line == "1":  # a release: a call for each is felt
                future.set_result(True)
            elif line[0] == "E":
                future.set_exception(refusal(self.subject, line[1:]))
            else:
                future.set_result(decoded(line))

    def fail(self, make: MakeError) -> None:
        for future in self.futures:
            if not future.done():
                # An error object for each: one that is raised in many tasks collects their frames.
                future.set_exception(make())


class Link(Protocol):
    """Whose connection it is: told of what answers no question, and of its end."""

    on_turned_away: Callable[[Run, ReplyError], None] | None

    def pushed(self, message: Push) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """A live connection. What is in flight when it ends, ends with an unknown outcome.

    It reads into a buffer of its own. For one that does not, the loop has the system give it 256 KiB anew for each read, and
    take most of it back: an eighth of what a lock costs its client.
    """

    def __init__(self, link: Link, caller: Caller) -> None:
        self._link = link
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._parser = Parser()
        self._pending: deque[Question | Run] = deque()
        self._subscribing: Question | None = None
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

    def in_flight(self) -> int:
        return sum(len(request.keys) for request in self._pending if isinstance(request, Run))

    def run(self, runs: Sequence[Run], *, load: bool = False) -> None:
        caller = self._caller.encoded
        requests: list[Question | Run] = []
        encoded: list[bytes] = []
        for run in runs:
            if run.asking:
                # Before each: it holds for the next command alone.
                requests.append(Unheard(run.deadline))
                encoded.append(ASKING)
            requests.append(run)
            encoded.append(script_run(run.names, run.keys, caller, run.items, further=run.further, load=load))
        self._send(requests, b"".join(encoded))
        if len(self._pending) == 1 and len(runs[0].keys) == 1:
            self._stay_awake()

    def ask(self, *words: str) -> asyncio.Future[Reply]:
        """Raises `ReplyError` for an error reply."""
        [reply] = self.ask_all([command(*words)])
        return reply

    def ask_all(self, commands: Sequence[bytes]) -> list[asyncio.Future[Reply]]:
        """The same for several commands, already encoded, in one write."""
        deadline = self._loop.time() + self._caller.timeout_s
        questions = [Question(deadline) for _ in commands]
        self._send(questions, b"".join(commands))
        return [question.future for question in questions]

    def subscribe(self) -> asyncio.Future[Reply]:
        """Hear what is said on the caller's channel. Once for a connection. Raises `ReplyError` where that is not allowed."""
        self._subscribing = Question(self._loop.time() + self._caller.timeout_s)
        self._send([self._subscribing], command("SUBSCRIBE", self._caller.channel))
        return self._subscribing.future

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

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._parser.feed(data):
                if isinstance(reply, Push):
                    if reply[0] == b"subscribe":
                        self._subscribed(reply)
                    self._link.pushed(reply)
                elif isinstance(reply, ReplyError):
                    self._refused(self._pending.popleft(), reply)
                else:
                    self._pending.popleft().answer(reply)
        except (ValueError, IndexError):
            self.drop("the server does not answer as a Redis server would")

    def _subscribed(self, message: Push) -> None:
        # It is answered by a push, but refused by an error like any other: so it stands in the queue of replies, where
        # its error would else be taken for the answer to the next request, and that one's for the next but one's.
        subscribing, self._subscribing = self._subscribing, None
        if subscribing is None:
            raise ValueError("nobody has asked for this channel")
        self._pending.remove(subscribing)
        subscribing.answer(message)

    def _refused(self, request: Question | Run, reply: ReplyError) -> None:
        if isinstance(request, Question):
            request.fail(lambda: reply)
        elif reply.code == "NOSCRIPT":
            # Restarted, failed over or flushed: it did not run, so sending it again is safe.
            self.run([request], load=True)
        elif reply.code in TURNED_AWAY and self._link.on_turned_away is not None:
            self._link.on_turned_away(request, reply)
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
