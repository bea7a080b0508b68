"""The same locks for threads: one blocking socket per thread, no pool, no event loop."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.port import Busy, Grant, Renewal, Standing
from holdfast.locks.runtime import FORKS, Runtime
from holdfast.locks.stores.redis.cluster import (
    ANSWER_SHARE,
    PAUSE_S,
    Place,
    by_slot,
    check_key,
    keys_of_run,
    owners_of,
    redirected_to,
    slot_of,
    still_moving,
)
from holdfast.locks.stores.redis.connection import ASKING, TURNED_AWAY
from holdfast.locks.stores.redis.refusals import greeting_refusal, refusal, unreachable
from holdfast.locks.stores.redis.sentinel import Sentinels
from holdfast.locks.stores.redis.vigil import Vigil
from holdfast.locks.stores.redis.wire import (
    SCRIPT,
    Address,
    Caller,
    Parser,
    Reply,
    ReplyError,
    acquire_item,
    bulk,
    command,
    decoded,
    in_parts,
    lines_of,
    parse_url,
    release_item,
    script_run,
    standings,
)

BACKOFF_S = 0.1
RECEIVE_BYTES = 8192
#: So long after two threads have asked in turn, they are expected to do so again.
COMPANY_S = 0.1
_HERE: Place = ("", 0)


class ThreadConnection:
    """A socket of one thread. Closed, never used again, after anything but a complete exchange."""

    def __init__(self, address: Address, timeout_s: float, now: Callable[[], float]) -> None:
        self.generation = FORKS.generation
        self._parser = Parser()
        self._socket = _connected(address, timeout_s)
        self._vigil = Vigil(self._socket.fileno(), now)
        try:
            for words in [*address.greeting(), ("SCRIPT", "LOAD", SCRIPT)]:
                reply = self.exchange(command(*words))
                if isinstance(reply, ReplyError):
                    raise reply
            if address.tls is None and threading.current_thread() is not threading.main_thread():
                _let_kernel_time_out(self._socket, timeout_s)
        except BaseException:
            self.close()
            raise

    def exchange(self, request: bytes, *, alone: bool = False) -> Reply:
        """Send, and wait for the reply: awake for a moment, if no other thread wants to ask."""
        try:
            self._socket.sendall(request)
            if alone and self._vigil.begins():
                self._stay_awake()
            while True:
                replies = self._parser.feed(self._socket.recv(RECEIVE_BYTES) or _hung_up())
                if replies:
                    return replies[0]
        except BaseException:
            # Also for a KeyboardInterrupt: the reply that is still to come answers nobody.
            self.close()
            raise

    def _stay_awake(self) -> None:
        answered = False
        while not answered and self._vigil.goes_on():
            answered = self._vigil.look()
        self._vigil.ended(answered=answered)

    def usable(self) -> bool:
        # After a fork the socket is the parent's: two processes would read each other's replies.
        return self.generation == FORKS.generation

    def close(self) -> None:
        self.generation = -1
        self._socket.close()

    def hang_up(self) -> None:
        """Close it from another thread; the one that waits for a reply is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def __del__(self) -> None:
        # A thread that ends takes its connection with it.
        if hasattr(self, "_socket"):
            self._socket.close()


class RedisBlockingStore:
    """`BlockingStore` on one server, on the primary that sentinels name, or on a cluster."""

    def __init__(self, url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> None:
        self._target = parse_url(url)
        self._sentinels = Sentinels(self._target)
        self._caller = Caller(url, holder=holder, prefix=prefix, runtime=runtime, timeout_s=timeout_s)
        # Nobody listens for wakes here, so the script shall not send any.
        self._encoded = bulk(self._caller.holder) + bulk("")
        self._clustered = self._target.kind == "cluster"
        self._owners: dict[int, Place] = {}
        self._outdated = True
        self._mine = threading.local()
        self._every: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()
        self._last_thread = 0
        self._company_until = 0.0
        self._guard = threading.Lock()
        self._down: dict[Place, tuple[float, Callable[[], LockError]]] = {}
        self._closed = threading.Event()

    def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        item = acquire_item(token, ttl_ms, queue_ms, fences)
        if self._clustered:
            check_key(key)
        (line,) = self._run([key], [item])
        if line[0] == "E":
            raise refusal(self._caller.subject, line[1:])
        answer = decoded(line)
        assert not isinstance(answer, bool)
        return answer

    def renew(self, renewals: Sequence[Renewal]) -> list[Standing]:
        keys = [renewal.key for renewal in renewals]
        answers: dict[int, Standing] = {}
        for part in by_slot(keys) if self._clustered else in_parts(range(len(keys))):
            items = [f"N {renewals[i].ttl_ms} {renewals[i].token}" for i in part]
            lines = self._run([keys[i] for i in part], items)
            answers.update(zip(part, standings(lines), strict=True))
        return [answers[i] for i in range(len(renewals))]

    def release(self, key: str, token: str) -> bool:
        return self._run([key], [release_item(token)]) == ["1"]

    def close(self) -> None:
        """Close the connection of every thread. A call that is under way ends `Unavailable`."""
        with self._guard:
            self._closed.set()
            for connection in list(self._every):
                if connection.usable():
                    connection.hang_up()

    def _run(self, keys: list[str], items: list[str]) -> list[str]:
        """Run the items, which share a slot. One line for each."""
        if self._clustered:
            return self._run_in_slot(keys, items)
        return self._answered(_HERE, self._reply(_HERE, self._caller.names_encoded, keys, items))

    def _run_in_slot(self, keys: list[str], items: list[str]) -> list[str]:
        """The same in a cluster. What a server did not begin, because the slot is elsewhere or on its way there, is asked of
        the other one, or again, while there is time."""
        runtime = self._caller.runtime
        again_until = runtime.now() + (1 - ANSWER_SHARE) * self._caller.timeout_s
        names, further = keys_of_run(self._caller, keys, items)
        moves = 0
        while True:
            place = self._owner(keys[0])
            reply = self._reply(place, names, keys, items, further=further)
            if _code(reply) == "ASK":
                # Just this once: until the slot has arrived, its owner is the first to be asked.
                place = redirected_to(reply, place)
                reply = self._reply(place, names, keys, items, further=further, asking=True)
            if _code(reply) not in TURNED_AWAY:
                return self._answered(place, reply)
            if _code(reply) == "MOVED":
                self._learn()
                moves += 1
                if moves == 1:
                    continue  # else they do not agree yet whose it is
            pause = runtime.jitter(PAUSE_S)
            if runtime.now() + pause >= again_until:
                raise still_moving(self._caller)
            self._closed.wait(pause)

    def _reply(
        self,
        place: Place,
        names: str,
        keys: list[str],
        items: list[str],
        *,
        further: Sequence[str] = (),
        asking: bool = False,
    ) -> Reply:
        for load in (False, True):
            if asking:  # it holds for the next command alone
                self._exchange(place, ASKING)
            request = script_run(names, keys, self._encoded, items, further=further, load=load)
            reply = self._exchange(place, request)
            if _code(reply) != "NOSCRIPT":
                break
            # Restarted, failed over or flushed: it did not run, so sending it again is safe.
        return reply

    def _answered(self, place: Place, reply: Reply) -> list[str]:
        if not isinstance(reply, ReplyError):
            return lines_of(reply)
        if reply.code == "READONLY":
            self._mine_by_place().pop(place).close()  # the next connection finds the primary
        raise refusal(self._caller.subject, str(reply))

    def _exchange(self, place: Place, request: bytes) -> Reply:
        mine = self._mine_by_place()
        # Out of reach meanwhile: a signal's handler, or a destructor, may ask in the middle of this, in this very thread. On
        # this connection it would get the answer that is waited for here.
        connection = mine.pop(place, None)
        if connection is None or not connection.usable():
            connection = self._connect(place)
        try:
            reply = connection.exchange(request, alone=self._is_alone())
        except (OSError, ValueError) as why:
            self._outdated = True
            late = isinstance(why, (TimeoutError, BlockingIOError))
            detail = f"no answer within {self._caller.timeout_s} s" if late else "connection lost"
            raise Unavailable(self._caller.subject, detail, applied=None) from None
        mine[place] = connection
        return reply

    def _is_alone(self) -> bool:
        """Whether other threads have long not asked. One that stays awake keeps the interpreter
        from them: they would take turns where they could all wait at once."""
        thread, now = threading.get_ident(), self._caller.runtime.now()
        if thread != self._last_thread:
            self._last_thread, self._company_until = thread, now + COMPANY_S
        return now >= self._company_until

    def _mine_by_place(self) -> dict[Place, ThreadConnection]:
        """The calling thread's connections that are not in use."""
        try:
            connections: dict[Place, ThreadConnection] = self._mine.connections
        except AttributeError:
            connections = self._mine.connections = {}
        return connections

    def _connect(self, place: Place) -> ThreadConnection:
        caller = self._caller
        if self._closed.is_set():
            raise Unavailable(caller.subject, "the store is closed", applied=False)
        down = self._down.get(place)
        if down is not None and caller.runtime.now() < down[0]:
            raise down[1]()  # while the server is down only one caller now and then waits for it
        password = ""
        try:
            address = self._locate(place)
            password = address.password
            connection = ThreadConnection(address, caller.timeout_s, caller.runtime.now)
        except ReplyError as reply:
            text = str(reply)
            self._fail(place, lambda: greeting_refusal(caller.subject, text, password))
        except (OSError, ValueError) as failed:
            why = failed.with_traceback(None)
            self._fail(place, lambda: unreachable(caller.subject, why))
        with self._guard:
            self._down.pop(place, None)
            self._every.add(connection)
            if self._closed.is_set():  # while we connected
                connection.close()
        return connection

    def _fail(self, place: Place, make: Callable[[], LockError]) -> NoReturn:
        self._outdated = True  # its replica may have the slots by now, or in a moment
        with self._guard:
            self._down[place] = self._caller.runtime.now() + self._caller.runtime.jitter(BACKOFF_S), make
        raise make() from None

    def _locate(self, place: Place) -> Address:
        if self._clustered:
            return replace(self._target.addresses[0], host=place[0], port=place[1])
        if self._target.kind == "sentinel":
            return self._sentinels.find_primary_blocking(self._caller.timeout_s)
        return self._target.addresses[0]

    def _owner(self, key: str) -> Place:
        if self._outdated:
            self._learn()
        seed = self._target.addresses[0]
        # A slot that nobody serves: any server will say so.
        return self._owners.get(slot_of(key)) or (seed.host, seed.port)

    def _learn(self) -> None:
        """Ask one server after the other who has which slots."""
        seeds = [(seed.host, seed.port) for seed in self._target.addresses]
        # First those that may be there: one that is not may take all the time to say so.
        places = sorted(dict.fromkeys([*self._owners.values(), *seeds]), key=self._down.__contains__)
        for i, place in enumerate(places):
            try:
                reply = self._exchange(place, command("CLUSTER", "SLOTS"))
                if isinstance(reply, ReplyError):
                    raise refusal(self._caller.subject, str(reply))
            except LockError:
                if i == len(places) - 1:
                    raise
            else:
                self._owners, self._outdated = owners_of(reply, place), False
                return


def _code(reply: Reply) -> str:
    return reply.code if isinstance(reply, ReplyError) else ""


def _connected(address: Address, timeout_s: float) -> socket.socket:
    if address.path:
        conn = socket.socket(socket.AF_UNIX)
        conn.settimeout(timeout_s)
        try:
            conn.connect(address.path)
        except OSError:
            conn.close()
            raise
        return conn
    conn = socket.create_connection((address.host, address.port), timeout_s)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if address.tls is None:
        return conn
    try:
        return address.tls.wrap_socket(conn, server_hostname=address.host)
    except BaseException:
        conn.close()
        raise


def _let_kernel_time_out(conn: socket.socket, timeout_s: float) -> None:
    """Python waits with a poll() before each send and receive: two more system calls, and twice
    more in line for the interpreter. The kernel's own timeout starts anew after a signal, so
    it is not for the main thread, which is the one that signals reach."""
    conn.settimeout(None)
    seconds, rest = divmod(max(1, round(timeout_s * 1e6)), 1_000_000)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        conn.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, rest))


def _hung_up() -> bytes:
    raise ConnectionResetError("the server hung up")
