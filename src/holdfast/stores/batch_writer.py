"""Writes of one process, gathered: whatever has queued up is decided together and written as one batch.

Calls of one turn of the loop share a batch, and so do all that come while the batch before is under way, or before anything of
this one has been decided: batches grow with load, and what a batch costs a server is paid once for many callers.

Where the next batch waits already, it is brought on its way before those of the last one are answered: then this process
works on what they do next while the server works on the batch, instead of each waiting for the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.batch import BatchLedger, Needs

HELD_S_MAX = 0.02
"""For no longer is anybody's answer held back: the server may be busy with others, or away."""


@dataclass(slots=True, eq=False)
class Call:
    ask: Callable[[Needs], Any]
    verb: Callable[[BatchLedger], Any]
    """Returns its answer, or an error to be raised to whoever asked."""
    done: asyncio.Future[Any]
    deadline: float
    size: int


class Batch(NamedTuple):
    calls: list[Call]
    join: Callable[[], list[Call]]
    """Adds to them whoever has called since: who that is. Not when anything has been decided."""
    meanwhile: Callable[[], None]
    """To be called when the server is at work and nothing is to be done here."""


def asked(calls: Iterable[Call], needs: Needs) -> Needs:
    """With all that these must know."""
    for call in calls:
        call.ask(needs)
    return needs


class Written(NamedTuple):
    ledger: BatchLedger
    calls: list[Call]
    answers: list[Any]


class InDoubt(Exception):
    """The connection was lost while the batch was being applied: it may have happened."""

    def __init__(self, lost: Exception) -> None:
        super().__init__()
        self.lost = lost


class Batches(Protocol):
    """How one store writes a batch."""

    async def write(self, batch: Batch) -> tuple[BatchLedger, list[Any]]:
        """Load what the calls ask for, let each decide, and write what came of it; the answers in the calls' order.
        Raises `InDoubt`; after any other error nothing has happened."""

    def is_everybodys(self, failure: Exception) -> bool:
        """Whether no single call is to blame for it."""

    def translated(self, failure: Exception, *, applied: bool | None) -> HoldfastError:
        """The failure in the words of the port. `applied` is what is known if the answer got lost."""

    async def close(self) -> None: ...


class BatchWriter:
    """`committed` is called before those who asked are answered."""

    def __init__(
        self,
        subject: str,
        batches: Batches,
        *,
        batch_max: int,
        timeout_s: float,
        committed: Callable[[BatchLedger], None],
    ) -> None:
        self._subject = subject
        self._batches = batches
        self._batch_max = batch_max
        self._timeout_s = timeout_s
        self._committed = committed
        self._urgent: deque[Call] = deque()
        self._calls: deque[Call] = deque()
        self._written: list[Written] = []
        """Those who asked have not been answered yet."""
        self._task: asyncio.Task[None] | None = None
        self._open = True

    async def call(
        self, ask: Callable[[Needs], Any], verb: Callable[[BatchLedger], Any], *, size: int, urgent: bool
    ) -> Any:
        """The verb's answer, once it is durable. `size` is how much it wants to write, roughly."""
        loop = asyncio.get_running_loop()
        if not self._open:
            raise self._away("the store is not open")
        call = Call(ask, verb, loop.create_future(), loop.time() + self._timeout_s, size)
        (self._urgent if urgent else self._calls).append(call)
        if self._task is None:
            # A task begins with the next turn of the loop: calls of one turn share a batch.
            self._task = asyncio.create_task(self._run(), name="holdfast-store-writer")
        return await call.done

    async def close(self) -> None:
        """What is under way is still answered; what was not begun ends as not applied."""
        self._open = False
        self._fail([*self._urgent, *self._calls], lambda: self._away("the store was closed"))
        self._urgent.clear()
        self._calls.clear()
        try:
            if self._task is not None:
                await asyncio.wait([self._task])
        finally:
            await self._batches.close()

    async def _run(self) -> None:
        try:
            while self._urgent or self._calls:
                await self._write(self._take())
        finally:
            self._task = None
            self._answer()

    def _take(self, size: int = 0) -> list[Call]:
        """Who has called, for a batch of that size so far."""
        taken: list[Call] = []
        for lane in (self._urgent, self._calls):
            while lane and size < self._batch_max:
                taken.append(lane.popleft())
                size += taken[-1].size
        return taken

    def _still_wanted(self, calls: list[Call]) -> list[Call]:
        """Those that are not too late, and that nobody has gone away from."""
        now = asyncio.get_running_loop().time()
        self._fail([call for call in calls if call.deadline <= now], lambda: self._away("no answer in time"))
        return [call for call in calls if not call.done.done()]

    async def _write(self, calls: list[Call], *, grows: bool = True) -> None:
        calls = self._still_wanted(calls)
        if not calls:
            return
        batches = self._batches

        def join() -> list[Call]:
            joined = self._still_wanted(self._take(sum(call.size for call in calls))) if grows else []
            calls.extend(joined)
            return joined

        try:
            ledger, answers = await batches.write(Batch(calls, join, self._answer))
        except InDoubt as doubt:
            lost = doubt.lost
            self._fail(calls, lambda: batches.translated(lost, applied=None))
        except Exception as failure:  # noqa: BLE001  (whatever it is, it is one caller's: the others are to be served)
            why = failure
            if len(calls) > 1 and not batches.is_everybodys(failure):
                # One of them cannot be stored, and spoilt it for all. Nothing was applied. It is looked for by halves, so that
                # most of the others still share a batch; nobody else joins it.
                middle = len(calls) // 2
                await self._write(calls[:middle], grows=False)
                await self._write(calls[middle:], grows=False)
            else:
                self._fail(calls, lambda: batches.translated(why, applied=False))
        else:
            self._written.append(Written(ledger, calls, answers))
            if self._urgent or self._calls:
                asyncio.get_running_loop().call_later(HELD_S_MAX, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        written, self._written = self._written, []
        for ledger, calls, answers in written:
            # Before those who asked go on, but not in their way: what a listener does wrong is its own.
            asyncio.get_running_loop().call_soon(self._committed, ledger)
            for call, answer in zip(calls, answers, strict=True):
                if isinstance(answer, HoldfastError):
                    self._fail([call], lambda answer=answer: answer)  # type: ignore[misc]
                elif not call.done.done():
                    call.done.set_result(answer)

    def _away(self, detail: str) -> StoreUnavailable:
        return StoreUnavailable(self._subject, detail, applied=False)

    def _fail(self, calls: list[Call], error: Callable[[], HoldfastError]) -> None:
        """Each with an error of its own: raising one adds to it where it was raised."""
        for call in calls:
            if not call.done.done():
                call.done.set_exception(error())
