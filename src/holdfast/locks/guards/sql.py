"""A guarded transaction, for every SQL database and driver.

The highest accepted (fence, seq) of a resource lives beside the data, in a table of the user's own
database, and is raised in the same transaction as the writes it admits:

    holdfast_fences (resource PRIMARY KEY, fence, seq, answer)

The claim comes first and locks the mark's row until the commit. So what the body reads cannot be
overwritten by an older holder before the body writes, and competitors queue at the row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from holdfast.locks.errors import StaleFence
from holdfast.locks.fence import NO_MARK, Mark, rule
from holdfast.locks.guards.fenced import Fenced, require_fence

T = TypeVar("T")
C = TypeVar("C")

CREATE_TABLE = (
    "CREATE TABLE IF NOT EXISTS holdfast_fences (resource TEXT NOT NULL PRIMARY KEY,"
    " fence BIGINT NOT NULL, seq BIGINT NOT NULL, answer TEXT)"
)

_CLAIM = (
    "INSERT INTO holdfast_fences (resource, fence, seq) VALUES ({}, {}, {})"
    " ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence, seq = excluded.seq, answer = NULL WHERE "
)
_HIGHER_PAIR = "(excluded.fence, excluded.seq) > (holdfast_fences.fence, holdfast_fences.seq)"
_HIGHER_FENCE = "excluded.fence > holdfast_fences.fence"


class Claim(Protocol):
    """What a guard asks for."""

    values: tuple[str, int, int]
    """The resource, and the fence and the seq of the mark: as the statements want them."""
    once_per_fence: bool


class Statements(NamedTuple):
    """The statements of a guard, with a driver's placeholders; the comments name their values."""

    claim: str  # resource, fence, seq
    claim_once: str  # resource, fence, seq
    find: str  # resource
    answer: str  # answer, resource

    @classmethod
    def with_placeholders(cls, first: str, second: str, third: str) -> Statements:
        claim = _CLAIM.format(first, second, third)
        return cls(
            claim=f"{claim}{_HIGHER_PAIR}",
            claim_once=f"{claim}{_HIGHER_FENCE}",
            find=f"SELECT fence, seq, answer FROM holdfast_fences WHERE resource = {first}",  # noqa: S608  (placeholders)
            answer=f"UPDATE holdfast_fences SET answer = {first} WHERE resource = {second}",  # noqa: S608
        )

    def claiming(self, claim: Claim) -> str:
        return self.claim_once if claim.once_per_fence else self.claim


class Session(Protocol):
    """One transaction at a time on one connection of one driver.

    Of a `blocking` driver the coroutines never wait, so a plain `with` can run them too.
    """

    @property
    def blocking(self) -> bool: ...

    async def open(self, claim: Claim, *, create: bool) -> bool:
        """Begin, or set a savepoint in the caller's transaction, and claim. False: not raised.

        `create` makes the table first, safely beside others who do the same.
        """

    async def find(self, resource: str) -> tuple[int, int, str | None]:
        """The mark and the answer as they are now: a refused claim still holds the row's lock."""

    async def store_answer(self, resource: str, answer: str) -> None: ...

    async def commit(self) -> None:
        """End what `open` began; the caller's own transaction goes on."""

    async def rollback(self) -> None:
        """Undo what `open` began. Harmless if that has ended already."""


class Guard(ABC, Generic[C]):
    """Claims a resource for a lease around one transaction; `with` or `async with` gives the connection.

    Entering checks the lease, begins a transaction (a savepoint, if the caller has one open) and
    raises the resource's mark to this lease's fence and its next seq: before the first read, in
    the same transaction as the writes. `StaleFence` if the resource has seen a higher mark.
    Leaving checks the lease once more and commits; an error or a lost lease rolls everything
    back, the mark included. A transaction that the caller opened is never committed here.

    An operation whose outcome may become unknown is given its number, `seq=lease.next_seq()`, and is
    repeated with the same one. If it did commit, `repeated` is True, `answer` is what `set_answer` kept,
    and whatever the body writes again is rolled back. Without `seq` an operation takes the next number
    by itself; on SQLite, where none arrives late, only if somebody asks this lease or this guard for one, or
    it needs one: for `set_answer`, `once_per_fence`, and in the caller's own transaction.
    Read inside the guard: what was read before it is not protected.
    """

    __slots__ = ("_conn", "_lease", "_seq", "answer", "once_per_fence", "repeated", "resource", "values")

    values: tuple[str, int, int]
    """What was offered, once the guard is entered."""

    def __init__(self, lease: Fenced, conn: C, resource: str, seq: int | None, once_per_fence: bool) -> None:  # noqa: FBT001  (keywords end at `guard`)
        if lease.fence <= 0 or not resource or "\0" in resource:
            require_fence(lease, resource)
        if seq is not None and seq < 1:
            raise ValueError(
                f"seq counts from 1, not {seq}: take it from lease.next_seq(), before the guard is entered"
            )
        self._lease = lease
        self._conn = conn
        self._seq = seq
        self.resource = resource
        self.once_per_fence = once_per_fence
        self.repeated = False
        self.answer: str | None = None

    @property
    def mark(self) -> Mark:
        """What was offered; `NO_MARK` before the guard is entered."""
        return Mark(*self.values[1:]) if hasattr(self, "values") else NO_MARK

    def set_answer(self, answer: str) -> None:
        """Keep `answer` with the mark, in this transaction, for whoever repeats this operation."""
        self.answer = answer

    def recognise(self, fence: int, seq: int, answer: str | None) -> None:
        """The claim was not accepted: the same operation again, or a stale one."""
        offered = self.mark
        if not rule(Mark(fence, seq), offered, once_per_fence=self.once_per_fence).repeated:
            self._lease.fence_refused(self.resource)
            raise StaleFence(self.resource, current=(fence, seq), offered=(offered.fence, offered.seq))
        self.repeated, self.answer = True, answer

    @abstractmethod
    def __enter__(self) -> C: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def __aenter__(self) -> C: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SessionGuard(Guard[C]):
    """The guard of drivers behind a session: the flow is written once, as coroutines."""

    __slots__ = ("_session",)

    def __init__(self, session: Session, lease: Fenced, conn: C, resource: str, *options: Any) -> None:
        super().__init__(lease, conn, resource, *options)
        self._session = session

    async def __aenter__(self) -> C:
        lease, session = self._lease, self._session
        lease.check()
        self.values = (self.resource, lease.fence, lease.next_seq() if self._seq is None else self._seq)
        try:
            try:
                raised = await session.open(self, create=False)
            except Exception as failure:
                if not table_is_missing(failure):
                    raise
                await session.rollback()
                raised = await session.open(self, create=True)
            if not raised:
                self.recognise(*await session.find(self.resource))
        except BaseException:
            await session.rollback()
            raise
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self.repeated:
                if self.answer is not None:
                    await self._session.store_answer(self.resource, self.answer)
                # The fence would stop a newer holder's data from being overwritten; this stops work
                # that nobody else has claimed yet, but that the holder no longer may finish.
                self._lease.check()
                await self._session.commit()
        except BaseException:
            await self._session.rollback()
            raise
        if error is not None or self.repeated:
            # A repeat already has its effect: a body that overlooked `repeated` must not add another.
            await self._session.rollback()

    def __enter__(self) -> C:
        if not self._session.blocking:
            raise TypeError(f"{type(self._conn).__name__} is asynchronous: use `async with`")
        return _finished(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _finished(self.__aexit__(kind, error, trace))


def sqlstate(error: BaseException) -> str | None:
    """Postgres' code of an error, whichever driver raised it, also through SQLAlchemy."""
    code: str | None = getattr(getattr(error, "orig", error), "sqlstate", None)
    return code


def table_is_missing(error: BaseException) -> bool:
    return sqlstate(error) == "42P01" or "no such table: holdfast_fences" in str(error)


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a blocking session waited")
