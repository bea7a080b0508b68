"""Connections of the control plane to Postgres: made ready, few, ended in time, their failures explained."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg

from holdfast.errors import HoldfastError, Invalid, StoreUnavailable
from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.stores import shown
from holdfast.locks.stores.certificate import distrusted
from holdfast.locks.stores.postgres.link import (
    BROKEN,
    FAILURES,
    MAKE_UTF8,
    ended_at,
    explained,
    hang_up,
    not_utf8,
    refuse_lent_sessions,
)

T = TypeVar("T")

LINES_MAX = 4
"""Connections besides that of the writer. They answer within a millisecond or so; more would not make them faster."""

LOST = (*BROKEN, asyncpg.InternalClientError)
"""The connection is gone. Where it died while nothing was asked of it, the driver says so in its own confused way."""

STANDBY = "this server is a standby, or can only be read; name all hosts in the URL, and the primary is found"

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_UNSTORABLE = (ValueError, OverflowError, asyncpg.DataError, asyncpg.ProgramLimitExceededError)


def settings(timeout_s: float) -> dict[str, str]:
    """What every connection asks of the server."""
    limit = str(round(timeout_s * 1000))
    return {
        "application_name": "holdfast",
        "statement_timeout": limit,
        # Of a process that was stopped in the middle of a transaction. Half of what callers wait, so that those who
        # came after it are still served.
        "idle_in_transaction_session_timeout": str(round(timeout_s * 500)),
        "default_transaction_isolation": "read committed",
        # Planes take turns by waiting for a lock, no longer than a statement may take anyway.
        "lock_timeout": "0",
        # Rows are written as arrays in text, in which NULL is what is not there.
        "array_nulls": "on",
        # Statistics may be hours old, when the table was empty: no plan may read all of it because of that.
        "enable_seqscan": "off",
        "jit": "off",
    }


async def connect(url: str, *, timeout_s: float, more: Mapping[str, str] | None = None) -> asyncpg.Connection:
    """With `more` settings than usual. What the URL itself sets is left to it."""
    own = parse_qs(urlsplit(url).query)
    asked = {name: value for name, value in {**settings(timeout_s), **(more or {})}.items() if name not in own}
    # Asked of every connection, not of the first alone: a name may come to mean another server, and one that lags would tell of
    # what was so a while ago.
    wanted = None if "target_session_attrs" in own else "primary"
    connection = await asyncpg.connect(
        url, timeout=timeout_s, max_cached_statement_lifetime=0, target_session_attrs=wanted
    )
    # Not with the greeting, in which a pooler lets pass only what it knows.
    asking = "; ".join(f"SET {name} = '{value}'" for name, value in asked.items())
    try:
        await answered(connection, connection.execute(asking), timeout_s=timeout_s)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def connect_first(url: str, *, timeout_s: float) -> asyncpg.Connection:
    """The same for whoever has just been given the URL: `Invalid` if that cannot be used. Later it is an outage, as where a
    certificate is just being replaced."""
    try:
        connection = await connect(url, timeout_s=timeout_s)
    except ssl.SSLCertVerificationError as failure:
        why, step = distrusted(failure, authority="sslrootcert")
        raise Invalid(f"Postgres at {shown(url)}: {why}. {step}") from None
    except (FileNotFoundError, PermissionError):
        own = parse_qs(urlsplit(url).query)
        unread = [name for name in _FILES if name in own and not os.access(own[name][0], os.R_OK)]
        if not unread:
            raise  # of the server's socket, which may come
        raise Invalid(f"{unread[0]} in the store's URL must name a readable file") from None
    except (ValueError, OverflowError):
        raise Invalid("the store's URL cannot be used; check its port, and what follows its '?'") from None
    again = partial(connect, url, timeout_s=timeout_s)
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        await refuse_lent_sessions(connection, again, subject=shown(url), deadline=deadline)
    except BaseException:
        connection.terminate()
        raise
    return connection


def refuse_encoding(encoding: str, subject: str) -> None:
    """Raises `StoreUnavailable` for one that cannot keep everything."""
    if encoding != "UTF8":
        raise StoreUnavailable(subject, f"{not_utf8(encoding)}. {MAKE_UTF8}", applied=False)


async def answered(connection: asyncpg.Connection, question: Awaitable[T], *, timeout_s: float) -> T:
    """Its answer; or `TimeoutError`, where the server has gone without a word."""
    with ended_at(connection, asyncio.get_running_loop().time() + timeout_s):
        return await question


def is_unstorable(failure: Exception) -> bool:
    """Whether it is about a value, and so about whoever wanted to store it."""
    return isinstance(failure, _UNSTORABLE) and not isinstance(failure, ssl.SSLError)


def translated(failure: Exception, subject: str, *, applied: bool | None) -> HoldfastError:
    """The failure in the words of the port. `applied` is what is known if the answer got lost."""
    if isinstance(failure, HoldfastError):
        return failure
    if is_unstorable(failure):
        # Not its text: the driver's quotes the value.
        return Invalid(f"this cannot be stored: {type(failure).__name__}")
    if isinstance(failure, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailable(subject, STANDBY, applied=False)
    known = explained(failure, subject, applied=applied)
    if isinstance(known, StoreRefused | Unavailable):
        _, _, detail = str(known).partition(": ")
        is_known = known.applied if isinstance(known, Unavailable) else False
        return StoreUnavailable(subject, detail or str(known), applied=is_known)
    return StoreUnavailable(subject, type(failure).__name__, applied=applied)


class Lines:
    """A few connections for whatever is not written by the writer."""

    def __init__(self, url: str, subject: str, *, timeout_s: float) -> None:
        self._url = url
        self._subject = subject
        self._timeout_s = timeout_s
        self._idle: list[asyncpg.Connection] = []
        self._free = asyncio.Semaphore(LINES_MAX)
        self._open = False

    def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False
        idle, self._idle = self._idle, []
        try:
            for connection in idle:
                await hang_up(connection, timeout_s=self._timeout_s)
        finally:
            for connection in idle:
                connection.terminate()

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """For what changes nothing: if the connection had died, it is asked once more."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        rows: list[Any]
        try:
            try:
                rows = await self._ask(lambda connection: connection.fetch(sql, *arguments), deadline)
            except LOST:
                if not self._open or asyncio.get_running_loop().time() >= deadline:
                    raise
                self._forget_idle()
                rows = await self._ask(lambda connection: connection.fetch(sql, *arguments), deadline)
        except (*FAILURES, ValueError) as failure:
            raise translated(failure, self._subject, applied=False) from None
        return rows

    async def change(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """For what writes by itself. It is not asked again: it may have been applied."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            return await self._ask(work, deadline)
        except (*FAILURES, ValueError) as failure:
            raise translated(failure, self._subject, applied=None) from None

    async def _ask(self, question: Callable[[asyncpg.Connection], Awaitable[T]], deadline: float) -> T:
        async with self._lent(deadline) as connection:
            with ended_at(connection, deadline):
                return await question(connection)

    @asynccontextmanager
    async def _lent(self, deadline: float) -> AsyncIterator[asyncpg.Connection]:
        # Many may be waiting, and each who is served may take all the time there is: of a server that does not answer the last of
        # them would hear after all the others.
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable(self._subject, "no answer in time", applied=False) from None
        try:
            if not self._open:
                raise StoreUnavailable(self._subject, "the store is not open", applied=False)
            connection = self._idle.pop() if self._idle else None
            if connection is None or connection.is_closed():
                async with asyncio.timeout_at(deadline):
                    connection = await connect(self._url, timeout_s=self._timeout_s)
            try:
                yield connection
            except (asyncio.CancelledError, *LOST, asyncpg.ReadOnlySQLTransactionError):
                # An answer may still be under way on it; or it is of a time when this server could only be read.
                connection.terminate()
                raise
            finally:
                self._take_back(connection)
        finally:
            self._free.release()

    def _take_back(self, connection: asyncpg.Connection) -> None:
        if self._open and not connection.is_closed():
            self._idle.append(connection)
        else:
            connection.terminate()

    def _forget_idle(self) -> None:
        """They died together, most likely: with the server, or at its administrator's hands."""
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()
