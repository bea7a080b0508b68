"""What is Postgres's own in the control plane's store: answers that get lost, and planes that are stopped."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import servers
from harness import eventually
from locks.postgres_setup import full_of_notifications

from holdfast.core.job import Job, amend
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Accepted, Change, Submission, Transaction
from holdfast.stores import open_store
from holdfast.stores.postgres.link import LOST, connect, translated
from holdfast.stores.postgres.writer import LOCK
from plane.jobs import ACME, a_job, running, submitted
from plane.postgres_schemas import PLANES, admin, opened, several, url, value  # noqa: F401


def submission(**changes: Any) -> Submission:
    return Submission(job=a_job(**changes), key=None, digest="")


def asked_to_stop(job: Job, *, dead_letter: str = "") -> Change:
    return Change(
        before=job, after=amend(job, cancel_requested=True), kind="job.cancel_requested", dead_letter=dead_letter
    )


# -- what is known when the answer is lost ---------------------------------------------------------

_SLOW_COMMIT = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(5); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON holdfast_dead_letters DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow();
"""
_COMMITTING = "SELECT pid FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active' AND pid <> pg_backend_pid()"


async def test_connection_that_ends_between_two_steps_of_the_driver_is_a_lost_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has prepared a statement, and finds nothing to run it on."""
    prepare = asyncpg.Connection._get_statement
    ended: list[asyncpg.Connection] = []

    async def prepare_and_end(connection: asyncpg.Connection, *arguments: Any, **options: Any) -> Any:
        prepared = await prepare(connection, *arguments, **options)
        if not ended:
            ended.append(connection)
            connection.terminate()
        return prepared

    async with opened(url) as store:
        job = await submitted(store)
        monkeypatch.setattr(asyncpg.Connection, "_get_statement", prepare_and_end)

        assert await store.find_jobs([job.id]) == [job], "it was asked once more, on another connection"
        ended.clear()
        assert await submitted(store), "nothing had been sent, so it was tried again"
        assert ended


async def test_connection_lost_in_the_commit_leaves_it_unknown(url: str, admin: psycopg.AsyncConnection[Any]) -> None:
    async with opened(url) as store:
        job = await submitted(store)
        await admin.execute(_SLOW_COMMIT)
        stopping = asked_to_stop(job, dead_letter="x")
        writing = asyncio.create_task(store.apply([stopping]))
        pid = await eventually(lambda: value(admin, _COMMITTING))

        await admin.execute("SELECT pg_terminate_backend(%s)", (pid,))

        with pytest.raises(StoreUnavailable) as caught:
            await writing
        assert caught.value.applied is None
        assert (await store.get_job(ACME, job.id)).version in {job.version, stopping.after.version}
        assert await submitted(store), "the next one has a connection of its own"


async def test_commit_that_takes_too_long_is_unknown_and_server_gives_up_too(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as ready:
        job = await submitted(ready)
        await admin.execute(_SLOW_COMMIT)
        async with opened(url, timeout_s=0.7) as store:
            change = Change(before=job, after=amend(job), kind="job.amended", dead_letter="x")
            with pytest.raises(StoreUnavailable) as caught:
                await store.apply([change])
        # The server's own limit may answer just before ours: then it is known.
        assert caught.value.applied in {None, False}
        assert await ready.get_job(ACME, job.id) == job


async def test_connections_that_died_while_idle_are_replaced_without_anybody_noticing(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(f"{url}&application_name=idle") as store:
        job = await submitted(store)
        for _ in range(3):
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idle'"
            )

            assert await store.get_job(ACME, job.id) == job
            assert await submitted(store)


async def test_plane_that_was_stopped_in_its_turn_does_not_cost_the_others_theirs(url: str) -> None:
    """They wait no longer for it than they would for an answer."""
    async with opened(url, timeout_s=8.0) as store:
        stopped = await connect(url, timeout_s=8.0)
        await stopped.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})")

        assert await submitted(store), "the server has ended that transaction"

        with pytest.raises((asyncpg.PostgresError, *LOST)):
            await stopped.execute("COMMIT")
        stopped.terminate()


async def test_call_that_waited_too_long_for_its_turn_was_not_applied(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url, timeout_s=1.0) as store:
        await submitted(store)
        await admin.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})".encode())

        with pytest.raises(StoreUnavailable) as caught:
            await store.submit([submission()])

        assert caught.value.applied is False
        await admin.execute("ROLLBACK")
        assert len(await store.list_events(after=0, limit=10)) == 1
        assert await submitted(store)


async def test_whoever_calls_while_another_plane_has_its_turn_shares_the_next_one(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as store:
        await submitted(store)
        await admin.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})".encode())
        first = asyncio.create_task(store.submit([submission()]))

        async def is_waiting() -> bool:
            return bool(await value(admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

        await eventually(is_waiting)
        others = [asyncio.create_task(store.submit([submission(topic=topic)])) for topic in ("a", "s3cret\0", "b")]
        await admin.execute("ROLLBACK")
        answers = await asyncio.gather(first, *others, return_exceptions=True)

        assert [isinstance(answer, list) for answer in answers] == [True, True, False, True]
        # By halves, for one of the four cannot be stored.
        assert await value(admin, "SELECT count(DISTINCT xmin::text) FROM holdfast_jobs") == 3


@contextlib.asynccontextmanager
async def nobody_reads_jobs(admin: psycopg.AsyncConnection[Any]) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Meanwhile; and whether somebody wants to."""

    async def is_wanted() -> bool:
        return bool(await value(admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted"))

    await admin.execute("BEGIN; LOCK TABLE holdfast_jobs IN ACCESS EXCLUSIVE MODE")
    yield is_wanted
    await admin.execute("ROLLBACK")


async def test_whoever_calls_while_it_is_read_what_others_want_to_change_shares_their_transaction(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as store:
        stopped, other = [asked_to_stop(await submitted(store)) for _ in range(2)]
        async with nobody_reads_jobs(admin) as is_wanted:
            first = asyncio.create_task(store.apply([stopped]))
            await eventually(is_wanted)
            joined = [asyncio.create_task(store.apply([change])) for change in (other, stopped)]
            submitting = asyncio.create_task(store.submit([submission()]))
            await asyncio.sleep(0)

        assert await first == [True]
        assert await asyncio.gather(*joined) == [[True], [False]], "the last was asked to stop before"
        assert await submitting
        assert await value(admin, "SELECT count(DISTINCT xmin::text) FROM holdfast_jobs") == 1


async def test_lease_that_is_renewed_by_who_joins_lasts_from_when_that_was_asked_for(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    """A worker trusts it from the moment on in which it asked."""
    async with opened(url) as store:
        job, other = await running(store), await submitted(store)
        async with nobody_reads_jobs(admin) as is_wanted:
            first = asyncio.create_task(store.apply([asked_to_stop(other)]))
            await eventually(is_wanted)
            asked_at = store.now()
            joined = asyncio.create_task(store.renew_leases([(job.id, job.fence)]))
            await asyncio.sleep(0)

        assert await first == [True]
        [renewed] = await joined
        assert renewed is not None
        assert renewed.lease_until >= asked_at + Topics().get(job.topic).lease_s


async def test_whoever_joins_is_alone_in_a_session_only_if_nobody_is_left_of_those_stopped_before(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as store:
        jobs = [await submitted(store, session="s") for _ in range(3)]
        stopping = [asked_to_stop(job) for job in jobs[:2]]
        alone = Submission(job=a_job(session="s"), key=None, digest="", alone=True)
        async with nobody_reads_jobs(admin) as is_wanted:
            first = asyncio.create_task(store.apply(stopping))
            await eventually(is_wanted)
            joined = asyncio.create_task(store.transact([Transaction(submissions=[alone])]))
            await asyncio.sleep(0)

        assert await first == [True, True]
        assert await joined == [False], "the third was looked at, too"


@pytest.mark.parametrize(
    "failure",
    [
        asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"),
        asyncpg.InterfaceError("cannot call Transaction.__aexit__(): the underlying connection is closed"),
    ],
    ids=["state", "transaction"],
)
def test_what_the_driver_says_of_itself_is_told_as_a_lost_connection(failure: Exception) -> None:
    told = translated(failure, "postgresql://db", applied=None)

    assert (str(told), told.applied) == ("postgresql://db: connection lost", None)  # type: ignore[attr-defined]


# -- what others have set, or use up ---------------------------------------------------------------


@pytest.fixture
async def strange_role(url: str, admin: psycopg.AsyncConnection[Any]) -> AsyncIterator[str]:
    """The URL with a role whose sessions begin with settings that a plane cannot work under."""
    name = f"r{uuid.uuid4().hex[:12]}"
    await admin.execute(
        f"CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET array_nulls = off; "
        f"ALTER ROLE {name} SET lock_timeout = 1".encode()
    )
    yield url.replace("//test@", f"//{name}@")
    await admin.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP ROLE {name}".encode())


async def test_settings_of_the_role_change_nothing_of_what_is_kept(strange_role: str) -> None:
    async with opened(strange_role) as store:
        job = await submitted(store)

        assert await store.find_jobs([job.id]) == [job]


async def test_turn_is_waited_for_however_short_the_role_would_have_it(
    strange_role: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(strange_role) as store:
        await admin.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})".encode())
        waiting = asyncio.create_task(submitted(store))

        async def is_waiting() -> bool:
            return bool(await value(admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

        await eventually(is_waiting)
        await admin.execute("SELECT pg_sleep(0.05); ROLLBACK")

        assert await waiting


@pytest.fixture
def full() -> Iterator[str]:
    with full_of_notifications() as url:
        yield url


async def test_commits_go_on_when_the_server_has_no_room_for_what_others_are_told(full: str) -> None:
    async with opened(full) as one, opened(full) as two:
        job = await submitted(one)
        after = amend(job, cancel_requested=True)

        assert await two.apply([Change(before=job, after=after, kind="job.amended")]) == [True]
        assert [event.kind for event in await one.list_events(after=0, limit=10)] == ["job.submitted", "job.amended"]


async def test_server_that_is_away_is_unavailable_and_nothing_was_applied(unused_port: int) -> None:
    store = open_store(
        f"postgresql://ann:s3cret@127.0.0.1:{unused_port}/x?application_name=s3cret", topics=Topics(), runtime=SYSTEM
    )

    with pytest.raises(StoreUnavailable) as caught:
        await store.open()

    assert caught.value.applied is False
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.fixture
def unused_port() -> int:
    return servers.free_port()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3/cret@127.0.0.1:1/db",
        "postgresql://ann:s3cret@127.0.0.1:x/db",
        "postgresql://ann:s3cret@[127.0.0.1/db",
        "postgresql://ann:s3cret@127.0.0.1:1/db?sslmode=s3cret",
        "mongodb://ann:s3cret@127.0.0.1/db",
    ],
)
async def test_url_that_cannot_be_used_is_not_repeated_in_the_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"check|percent-encoded|no store serves") as caught:
        await open_store(url, topics=Topics(), runtime=SYSTEM).open()

    assert "s3" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_value_that_cannot_be_stored_is_not_repeated_in_the_error(url: str) -> None:
    async with opened(url) as store:
        good = submission()
        answers = await asyncio.gather(
            store.submit([submission(topic="s3cret\0")]),
            store.submit([good]),
            store.submit([submission(labels={"a": "\0"})]),
            store.submit([submission(priority=2**40)]),
            return_exceptions=True,
        )

    assert answers[1] == [Accepted(good.job, repeated=False)]
    for refused in (answers[0], *answers[2:]):
        assert isinstance(refused, ValueError)
        assert "s3cret" not in str(refused)
        assert str(2**40) not in str(refused)
