"""How one store gets at its file: writes by way of the file's writer, reads on connections of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import apsw

from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.locks.errors import LockError
from holdfast.locks.stores.sqlite.calls import Calls
from holdfast.locks.stores.sqlite.writer import MEMORY, join
from holdfast.stores.sqlite.file import Listener, PlanePart, open_reader, translated
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.reads import Reads, TooLong, in_one_snapshot, in_short

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

T = TypeVar("T")


class Access:
    def __init__(self, path: str, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        self._path = path
        self._url = url
        self._topics = topics
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._part: PlanePart
        self._calls: Calls | None = None
        self._reader: apsw.Connection | None = None
        self._scanner: apsw.Connection | None = None
        self._scanning = threading.Lock()

    def now(self) -> float:
        return self._part.now()

    async def open(self, listener: Listener) -> None:
        """`listener` is told of each commit of this process."""
        if self._calls is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            if self._runtime.inline():
                self._join()
            else:
                joining = loop.run_in_executor(None, self._join)
                await asyncio.shield(joining)
        except LockError as error:
            raise translated(error) from error
        except asyncio.CancelledError:
            joining.add_done_callback(self._undo)  # it goes on in its thread
            raise
        self._calls = Calls(self._part.writer, self._part, shown=self._url, timeout_s=self._timeout_s)
        self._part.listen(listener, loop)

    async def close(self, listener: Listener) -> None:
        if self._calls is None:
            return
        self._calls.close()
        self._calls = None
        self._part.ignore(listener)
        if self._runtime.inline():
            self._leave()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._leave)

    async def write(self, verb: Callable[[SqliteLedger], T | HoldfastError], *, urgent: bool = False) -> T:
        try:
            answer: T = await self._open_calls().call(verb, urgent=urgent)
        except LockError as error:
            raise translated(error) from error
        return answer

    async def read(self, question: Callable[[Reads], T], *, single: bool = False) -> T:
        """For what an index answers at once: asked in place, which is cheaper than asking another thread.
        `single` is a question of one statement."""
        if self._reader is None:
            return await self._read_in_memory(question)
        return self._answer(self._reader, question, single=single)

    async def read_in_short(self, question: Callable[[Reads], T]) -> T:
        """For what is mostly answered at once."""
        try:
            return await self.read(question if self._reader is None else partial(in_short, question))
        except TooLong:
            return await self.scan(question)

    async def scan(self, question: Callable[[Reads], T]) -> T:
        """For what may have to look at many rows: the loop does not wait for it."""
        if self._scanner is None:
            return await self._read_in_memory(question)
        if self._runtime.inline():
            return self._answer(self._scanner, question)

        def scan(scanner: apsw.Connection) -> T:
            with self._scanning:
                return self._answer(scanner, question)

        return await asyncio.get_running_loop().run_in_executor(None, scan, self._scanner)

    def _join(self) -> None:
        part = join(self._path, self._url, self._runtime, "plane", lambda writer: PlanePart(writer, self._runtime))
        assert isinstance(part, PlanePart)
        self._part = part
        try:
            part.writer.prepare(lambda connection: part.adopt_topics(connection, self._topics))
            if not self._path.startswith(MEMORY):
                self._reader, self._scanner = open_reader(self._path), open_reader(self._path)
        except BaseException:
            self._leave()
            raise

    def _undo(self, joining: asyncio.Future[None]) -> None:
        """Nobody closes what was not opened."""
        if joining.exception() is None:
            self._leave()

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._scanner is not None:
            with self._scanning:  # a scan goes on when its caller has been cancelled
                self._scanner.close()
        self._reader = self._scanner = None
        self._part.writer.leave()

    def _answer(self, connection: apsw.Connection, question: Callable[[Reads], T], *, single: bool = False) -> T:
        try:
            return question(Reads(connection)) if single else in_one_snapshot(connection, question)
        except apsw.Error as error:
            raise translated(self._part.writer.typed(error)) from error

    def _read_in_memory(self, question: Callable[[Reads], T]) -> Awaitable[T]:
        """A database in memory has one connection: the writer's."""
        self._open_calls()

        def ask(ledger: SqliteLedger) -> T:
            ledger.finish()
            return question(ledger.reads)

        return self.write(ask)

    def _open_calls(self) -> Calls:
        if self._calls is None:
            raise StoreUnavailable(self._url, "the store is not open", applied=False)
        return self._calls
