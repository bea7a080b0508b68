"""Connections to Postgres for the lock store: made ready, ended in time, their failures explained."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import asyncpg

from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores import shown
from holdfast.locks.stores.certificate import distrusted
from holdfast.locks.stores.postgres.free import PLAN

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

SCHEMA_VERSION = 1
#: Creating the tables may take longer than a lock operation, and is not broken off for that.
CREATE_S = 30.0
#: How often a quiet listening connection is asked whether it still lives, and the pause after it died.
LISTEN_PROBE_S, LISTEN_RETRY_S = 15.0, 1.0

_FACTS = """
    SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'holdfast_store' AND pg_table_is_visible(oid)) AS prepared,
           EXISTS (SELECT FROM pg_class WHERE relname = 'holdfast_releases' AND pg_table_is_visible(oid)) AS complete,
           pg_is_in_recovery() AS standby, current_setting('transaction_isolation') AS isolation,
           getdatabaseencoding() AS encoding
"""

_SESSION = "SELECT pg_backend_pid()"

ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
#: A statement that was prepared is unknown, or one is known that was not: another session answers.
_ANOTHER_SESSION = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)
#: The server answered "not now": nothing was applied.
_NOT_NOW = (
    *ROLLED_BACK,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
)
#: The connection is gone: what it was asked last may or may not have been applied.
BROKEN = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
FAILURES = (LockError, asyncpg.PostgresError, asyncpg.InternalClientError, *BROKEN)

MAKE_UTF8 = "Create one for it: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'"
_LENT = "a pooler in front of this server lends a session for one transaction at a time; settings and wake-ups get lost"
_USE_SESSIONS = "Connect to the server itself, or to a pool in session mode (PgBouncer: pool_mode = session)"
_UNKNOWN_PARAMETER = "unsupported startup parameter"
_NAME_PARAMETER = (
    "A pooler takes no settings from a URL: leave them out and set them for the role (ALTER ROLE … SET …), "
    "or connect to the server itself"
)
_USE_PRIMARY = "Use the primary: list all hosts in the URL, and the one that can be written is found"
_NEXT_STEPS = {
    asyncpg.InvalidAuthorizationSpecificationError: "Check user and password of the URL, and the server's pg_hba.conf",
    asyncpg.InvalidCatalogNameError: "Create the database, or correct the URL",
    asyncpg.InsufficientPrivilegeError: "Grant this role CREATE on the schema for the first open, then the holdfast_* tables",
    asyncpg.ReadOnlySQLTransactionError: _USE_PRIMARY,
    asyncpg.DiskFullError: "Free disk space on the server",
    asyncpg.UndefinedTableError: "Close the store and open it again, which creates its tables",
    asyncpg.UndefinedFunctionError: "Drop the remaining holdfast_* tables, then open the store again",
}


async def connect(url: str, deadline: float) -> asyncpg.Connection:
    """A connection to a store whose tables exist and are ours. Raises one of FAILURES."""
    connection = await _reach(url, deadline - asyncio.get_running_loop().time())
    try:
        again = partial(_reach, url, deadline - asyncio.get_running_loop().time())
        await refuse_lent_sessions(connection, again, subject=shown(url), deadline=deadline)
        await _prepare(connection, shown(url), deadline)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _reach(url: str, timeout_s: float) -> asyncpg.Connection:
    """Of several hosts the one that can be written, unless the URL says which is wanted. A standby can be connected to, and
    keeps no lock; alone in its URL, it is told apart by whoever makes the connection ready."""
    wanted = (
        "read-write"
        if _has_several_hosts(url) and "target_session_attrs" not in parse_qs(urlsplit(url).query)
        else None
    )
    return await asyncpg.connect(url, timeout=timeout_s, target_session_attrs=wanted)


async def refuse_lent_sessions(
    connection: asyncpg.Connection,
    reach: Callable[[], Awaitable[asyncpg.Connection]],
    *,
    subject: str,
    deadline: float,
) -> None:
    """Raises `StoreRefused` if a pooler lets others have the session of an open connection between its transactions."""
    with ended_at(connection, deadline):
        session = await connection.fetchval(_SESSION)
        if session == connection.get_server_pid():
            return  # the server itself has greeted us
        other = await reach()
        try:
            with ended_at(other, deadline):
                async with other.transaction():  # keeps whichever session it has been given
                    is_lent = (
                        await other.fetchval(_SESSION) == session or await connection.fetchval(_SESSION) != session
                    )
        finally:
            other.terminate()
    if is_lent:
        raise StoreRefused(subject, _LENT, next_step=_USE_SESSIONS)


def _has_several_hosts(url: str) -> bool:
    parts = urlsplit(url)
    return "," in parts.netloc.rpartition("@")[2] or any(
        "," in hosts for hosts in parse_qs(parts.query).get("host", ())
    )


@contextmanager
def ended_at(connection: asyncpg.Connection, deadline: float) -> Iterator[None]:
    """Break the connection if the block is still waiting at the deadline. Cancelling the call instead
    would make the driver connect once more, to have the statement cancelled, and wait for that."""
    loop = asyncio.get_running_loop()
    timer = loop.call_at(deadline, connection.terminate)
    try:
        yield
    except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, AttributeError) as broken:
        # A connection that ends between two steps of the driver has lost what the second of them looks for.
        is_confused = isinstance(broken, AttributeError)
        if is_confused and not connection.is_closed():
            raise
        if loop.time() >= deadline:
            raise TimeoutError("no answer in time") from broken
        if is_confused:
            raise asyncpg.ConnectionDoesNotExistError("connection lost") from broken
        raise
    finally:
        timer.cancel()


async def hang_up(connection: asyncpg.Connection | None, *, timeout_s: float) -> None:
    if connection is not None:
        with suppress(*FAILURES), ended_at(connection, asyncio.get_running_loop().time() + timeout_s):
            await connection.close()


def explained(failure: Exception, subject: str, *, applied: bool | None) -> Exception:
    """The failure in the words of the port. `applied` is what is known if the answer got lost."""
    if isinstance(failure, LockError):
        return failure
    if isinstance(failure, ssl.SSLCertVerificationError):
        why, step = distrusted(failure, authority="sslrootcert")
        return StoreRefused(subject, why, next_step=step)
    if isinstance(failure, ValueError | asyncpg.DataError):  # a key or a URL that cannot be
        return ValueError(str(failure))
    if isinstance(failure, asyncpg.TargetServerAttributeNotMatched):
        # As in a failover: one of them may be promoted in a moment.
        return Unavailable(subject, "none of its hosts can be written now", applied=False)
    if isinstance(failure, _NOT_NOW):
        return Unavailable(subject, str(failure), applied=False)
    if isinstance(failure, _ANOTHER_SESSION):
        return StoreRefused(subject, _LENT, next_step=_USE_SESSIONS)
    if isinstance(failure, asyncpg.ProtocolViolationError) and _UNKNOWN_PARAMETER in str(failure):
        return StoreRefused(subject, str(failure), next_step=_NAME_PARAMETER)
    if isinstance(failure, asyncpg.PostgresError) and not isinstance(failure, BROKEN):
        steps = (step for kind, step in _NEXT_STEPS.items() if isinstance(failure, kind))
        return StoreRefused(subject, str(failure), next_step=next(steps, "The server's log tells more"))
    if isinstance(failure, asyncpg.InternalClientError) or "connection is closed" in str(failure):
        # The driver tells of its own calls, not of the server.
        return Unavailable(subject, "connection lost", applied=applied)
    return Unavailable(subject, str(failure) or "no answer in time", applied=applied)


def not_utf8(encoding: str) -> str:
    """Keys, and all that a plane is told, are Unicode: some of it could not be kept, and that would be found out late."""
    return f"the encoding of this database is {encoding}, and must be UTF8"


def read_only(failure: Exception, url: str) -> Exception:
    """Of several hosts, in a failover, the next connection finds the one that can be written by then."""
    if not _has_several_hosts(url):
        return failure
    return Unavailable(shown(url), "this host can be written no more: another one is looked for", applied=False)


class Listener:
    """Hears wake-ups on a connection of its own. They are hints: nobody is told when they cannot be heard."""

    def __init__(
        self, url: str, channel: str, hear: Callable[[str], None], *, runtime: Runtime, timeout_s: float
    ) -> None:
        self._url = url
        self._channel = channel
        self._hear = hear
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-listener")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            with suppress(*FAILURES):
                connection = await _reach(self._url, self._timeout_s)
                try:
                    await self._listen(connection)
                finally:
                    connection.terminate()
            await asyncio.sleep(self._runtime.jitter(LISTEN_RETRY_S))

    async def _listen(self, connection: asyncpg.Connection) -> None:
        loop = asyncio.get_running_loop()
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        with ended_at(connection, loop.time() + self._timeout_s):
            await connection.add_listener(self._channel, lambda *notified: self._hear(notified[-1]))
        self._hear("")  # whatever was said before we listened
        while not broken.is_set():
            try:
                async with asyncio.timeout(LISTEN_PROBE_S):
                    await broken.wait()
            except TimeoutError:
                with ended_at(connection, loop.time() + self._timeout_s):
                    await connection.execute("SELECT 1")


async def _prepare(connection: asyncpg.Connection, subject: str, deadline: float) -> None:
    with ended_at(connection, deadline):
        facts = await connection.fetchrow(_FACTS)
        if facts["standby"]:
            raise StoreRefused(subject, "this server is a standby, which cannot be written", next_step=_USE_PRIMARY)
        if facts["encoding"] != "UTF8":
            raise StoreRefused(subject, not_utf8(facts["encoding"]), next_step=MAKE_UTF8)
        if facts["isolation"] != "read committed":
            # Stricter levels turn every wait for a row into an error.
            await connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await connection.execute(PLAN)
    with ended_at(connection, asyncio.get_running_loop().time() + CREATE_S):
        if not facts["prepared"]:
            await _create(connection, "prepared", "locks.sql")
        version = await connection.fetchval("SELECT version FROM holdfast_store")
    if version is None:
        raise StoreRefused(
            subject,
            "the table holdfast_store has lost its row, and with it the floor of all fences",
            next_step="Restore the holdfast_* tables from a backup, or drop them all and open the store again",
        )
    if version > SCHEMA_VERSION:
        raise StoreRefused(
            subject,
            f"its tables have version {version}, and this Holdfast knows {SCHEMA_VERSION}",
            next_step="Upgrade Holdfast here, or use another schema (?search_path=… in the URL)",
        )
    if not facts["complete"]:
        with ended_at(connection, asyncio.get_running_loop().time() + CREATE_S):
            await _create(connection, "complete", "releases.sql")


async def _create(connection: asyncpg.Connection, fact: str, file: str) -> None:
    """Run the file, unless the fact that it brings about is true by now."""
    schema = files("holdfast.locks.stores.postgres").joinpath(file).read_text(encoding="utf-8")
    # Several processes may have found the tables missing: the first creates them, the others look again.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast_store'))")
        if not (await connection.fetchrow(_FACTS))[fact]:
            await connection.execute(schema)
