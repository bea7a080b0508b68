"""Batches of writes to Redis: decided on what was read, and applied by one script if nobody has written since.

Planes do not wait for each other's locks; who was overtaken decides anew. Whoever finds that it was has the next turn
(write.lua), so nobody is overtaken for ever. A write whose answer was lost is asked after by its word, which the script keeps: most
of what would be unknown elsewhere is known here as soon as the server answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError
from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.runtime import Runtime
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.batch_writer import Batch, InDoubt, asked
from holdfast.stores.redis.commands import Commands, Word
from holdfast.stores.redis.flush import flush, sessions, told
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.line import Line
from holdfast.stores.redis.link import ADOPT, SETTLE, WRITE, PlaneLink, StillMoving, translated
from holdfast.stores.redis.load import load, text

T = TypeVar("T")

BATCH_MAX = 500
"""Jobs, changes and records per script: some milliseconds, in which the server does nothing else."""
TURN_MS = 250
"""How long a plane that was overtaken may take to decide anew, with all others waiting; or three times as long as it took before.
Twice that if it was overtaken even so, and so on."""
TURN_MS_MAX = 2000
"""So long do all others wait if it dies in its turn."""
DONE_MS = 3_600_000
"""How long an answer can be asked after."""
LOSSES_MAX = 3
LOOK_S = 0.002
"""Between two looks whether another plane's turn is over."""
JUMP = 1_000_000
"""More numbers than a server can have forgotten (adopt.lua)."""


class Moved(Exception):
    """Somebody has written meanwhile: what was decided is not true any more."""


class Draft(NamedTuple):
    """A write that was decided: on which head, and what it is."""

    head: str
    commands: Commands
    ledger: BatchLedger | None = None
    """Whose events and sessions go with it, and whose news others are told."""


class RedisBatches:
    """`words` says what other planes are told of a batch, `told` of which event this one's listeners were told last."""

    def __init__(
        self,
        link: PlaneLink,
        keys: Keys,
        *,
        runtime: Runtime,
        timeout_s: float,
        now: Callable[[], float],
        words: Callable[[BatchLedger], list[str]],
        told: Callable[[], int] = lambda: 0,
    ) -> None:
        self._link = link
        self._keys = keys
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._now = now
        self._words = words
        self._told = told
        self._plane = runtime.token()[:16]
        self._writes = 0
        self._one_at_a_time = asyncio.Lock()

    async def close(self) -> None:
        await self._link.close()

    def is_everybodys(self, failure: Exception) -> bool:
        return isinstance(failure, LockError | Moved | TimeoutError)

    def translated(self, failure: Exception, *, applied: bool | None) -> HoldfastError:
        if isinstance(failure, Moved | TimeoutError):
            failure = Unavailable(self._link.subject, "others wrote all the time; try again", applied=False)
        return translated(failure, self._link.subject, applied=applied)

    async def write(self, batch: Batch) -> tuple[BatchLedger, list[Any]]:
        batch.meanwhile()  # the server is done so soon that nothing would be won by waiting

        async def decide() -> tuple[Draft, tuple[BatchLedger, list[Any]]]:
            needs = asked(batch.calls, Needs())
            loaded = await load(self._link.ask, self._keys, needs, self._now())
            if loaded.turn not in ("", self._plane):
                raise Moved
            # A server that has forgotten everything counts from the beginning: nobody would be told before it is as far as it was.
            loaded.ledger.last_number = max(loaded.ledger.last_number, self._told())
            try:
                answers = [call.verb(loaded.ledger) for call in batch.calls]
                commands = flush(self._keys, loaded)
            except Exception:
                await self._check_head(loaded.head)
                raise
            return Draft(loaded.head, commands, loaded.ledger), (loaded.ledger, answers)

        return await self.decided(decide)

    async def decided(self, decide: Callable[[], Awaitable[tuple[Draft, T]]]) -> T:
        """Decide and write, again and again until nobody has come in between. Raises `InDoubt`; after
        any other error nothing has happened."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        losses = overtaken = 0
        async with self._one_at_a_time:
            while True:
                began = loop.time()
                try:
                    draft, answer = await decide()
                    # A turn that ends before a plane far away from the server can use it would be none.
                    took_ms = round((loop.time() - began) * 1000)
                    await self._write(draft, turn_ms=min(max(TURN_MS, 3 * took_ms) << overtaken, TURN_MS_MAX))
                except Moved:
                    overtaken += 1
                    if loop.time() >= deadline:
                        raise
                    await self._wait_turn()
                except StillMoving:
                    raise
                except Unavailable:
                    # Of a connection that had died, or of a server that is the primary no more: nothing was written.
                    losses += 1
                    if losses == LOSSES_MAX or loop.time() >= deadline:
                        raise
                else:
                    return answer

    async def head(self) -> str:
        [head] = await self._link.ask(("GET", self._keys.head))
        return text(head)

    async def _check_head(self, head: str) -> None:
        """What could not be decided may have been read while somebody was writing."""
        if await self.head() != head:
            raise Moved

    async def _wait_turn(self) -> None:
        """Until it is nobody else's turn."""
        for _ in range(round(TURN_MS / 1000 / LOOK_S)):
            [whose] = await self._link.ask(("GET", self._keys.turn))
            if text(whose) in ("", self._plane):
                return
            await asyncio.sleep(self._runtime.jitter(LOOK_S))

    async def _write(self, draft: Draft, *, turn_ms: int) -> None:
        commands = list(draft.commands.commands())
        if not commands:
            return
        keys = self._keys
        self._writes += 1
        word = f"{self._plane}:{self._writes}"
        arguments: list[Word] = [draft.head, word, self._plane, turn_ms, DONE_MS, keys.news]
        arguments += self._beside(draft.ledger)
        for command in commands:
            arguments.append(len(command))
            arguments += command
        places = (keys.head, keys.turn, keys.done(self._plane), keys.fronts, keys.ready, keys.events, keys.never)
        try:
            answer = await self._link.run(WRITE, places, arguments)
        except Unavailable as lost:
            if lost.applied is False:
                raise
            await self._settle(word, lost)
        else:
            if answer != b"written":
                raise Moved

    def _beside(self, ledger: BatchLedger | None) -> Iterable[Word]:
        """What the script is given besides commands: words to be told, sessions to be arranged, events."""
        if ledger is None:
            return (0, 0, 0, 0, "", "")
        words, stirred = self._words(ledger), sessions(self._keys, ledger)
        first = ledger.events[0].number if ledger.events else 0
        histories = (self._keys.history(""), self._keys.run_history(""))
        return (
            len(words), *words,
            len(stirred), *(name for session in stirred for name in session),
            len(ledger.events), first, *histories, *told(ledger),
        )  # fmt: skip

    async def _settle(self, word: str, lost: Unavailable) -> None:
        """Returns if the write was applied; raises `Moved` if it was not, and never will be."""
        keys = self._keys
        try:
            applied = await self._link.run(SETTLE, (keys.head, keys.done(self._plane)), (word, self._runtime.token()))
        except LockError:
            raise InDoubt(lost) from None
        if not applied:
            raise Moved


async def adopt(line: Line, keys: Keys, runtime: Runtime) -> None:
    """On every connection that writes, before it does."""
    [about] = await line.ask(("INFO", "server"))
    run_id = info(about)["run_id"]
    await line.run(ADOPT, (keys.settings, keys.numbers, keys.head), (run_id, JUMP, runtime.token(), keys.news))


def info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, _, value in lines}
