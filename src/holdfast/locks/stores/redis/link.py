"""One connection per event loop to a Redis server: one write per tick, replies matched in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.port import WakeCallback
from holdfast.locks.stores.redis.connection import Connection, MakeError, Run
from holdfast.locks.stores.redis.refusals import greeting_refusal, no_connection, refusal, unreachable
from holdfast.locks.stores.redis.wire import SCRIPT, Address, Caller, Push, Reply, ReplyError, in_parts

logger = logging.getLogger(__name__)

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0


class WireLink:
    """Runs the script on one server. Connects when first used and again after a loss; sends
    nothing twice but what the server said it did not run."""

    def __init__(
        self, caller: Caller, locate: Callable[[], Awaitable[Address]], wake: WakeCallback, *, closed: bool = False
    ) -> None:
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
        self._closed = closed
        #: For a cluster: what this server did not begin, because the slot is not here, and that the server is gone.
        self.on_turned_away: Callable[[Run, ReplyError], None] | None = None
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
            await asyncio.shield(connection.ended)

    def idle(self) -> bool:
        """True if the server is ours to ask and has nothing else of ours to do."""
        return self._connection is not None and self._connection.idle()

    def in_flight(self) -> int:
        """How many items have been sent and not been answered."""
        return 0 if self._connection is None else self._connection.in_flight()

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

    async def ask_about(self, key: str, *words: str) -> Reply:
        """The same of the server that has the key."""
        return await self.ask(*words)

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
                self._subscribe(self._connection)

    def _subscribe(self, connection: Connection) -> None:
        connection.subscribe().add_done_callback(self._subscribed)

    def _subscribed(self, answer: asyncio.Future[Reply]) -> None:
        """Wake-ups are hints: who may not hear them polls. Somebody should know why it takes so long."""
        refused = None if answer.cancelled() else answer.exception()
        if isinstance(refused, ReplyError):
            why = refusal(self._caller.subject, str(refused))
            logger.warning("wake-ups are not heard, so waiters poll: %s", why, extra={"event": "wakes.refused"})

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
            why = partial(no_connection, self._caller.subject, self._caller.timeout_s)
        except (OSError, LockError) as failed:
            why = partial(unreachable, self._caller.subject, failed.with_traceback(None))
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
                    self._subscribe(connection)
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
