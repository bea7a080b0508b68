"""What `holdfast.locks.guards.sql.Guard` promises, through every driver it serves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from fenced_lease import Lease
from guarding import Driver

from holdfast.locks.errors import LeaseLost, StaleFence
from holdfast.locks.fence import Mark
from holdfast.locks.guards import guard

R = "accounts/42"


async def test_holder_writes_and_writes_again(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        for _ in range(3):
            held = guard(lease, conn, R)
            async with held as db:
                await driver.add(db, 1)
            assert not held.repeated

    assert await driver.balance() == 3


async def test_operation_that_is_asked_for_its_number_has_the_next(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        for expected in (Mark(10, 1), Mark(10, 2), Mark(10, 3)):
            held = guard(lease, conn, R)
            async with held as db:
                await driver.add(db, 1)
                assert held.mark == expected
            assert held.mark == expected

        again = guard(lease, conn, R, seq=held.mark.seq)
        async with again as db:
            await driver.add(db, 1)
        assert again.repeated

    assert await driver.balance() == 3


async def test_older_holder_is_refused_although_the_newer_one_has_only_read(driver: Driver) -> None:
    """Schedules 1 to 4: the late write arrives after the new holder's read, before its write."""
    older, newer = Lease(10), Lease(11)
    async with driver.connect() as conn:
        async with guard(older, conn, R) as db:
            await driver.add(db, 1)
        async with guard(newer, conn, R) as db:
            assert await driver.read(db) == 1

        with pytest.raises(StaleFence) as refused:
            async with guard(older, conn, R) as db:
                pytest.fail("the body of a refused guard ran")

        async with guard(newer, conn, R) as db:
            await driver.add(db, 10)

    assert (refused.value.current[0], refused.value.offered[0]) == (11, 10)
    assert await driver.balance() == 11


async def test_refusal_names_what_was_accepted_and_what_was_offered(driver: Driver) -> None:
    async with driver.connect() as conn:
        for mark in (Mark(10, 1), Mark(11, 1)):
            async with guard(Lease(mark.fence), conn, R, seq=mark.seq) as db:
                await driver.add(db, 1)
        with pytest.raises(StaleFence) as refused:
            async with guard(Lease(10), conn, R, seq=2):
                pytest.fail("the body of a refused guard ran")

    assert (refused.value.current, refused.value.offered) == ((11, 1), (10, 2))


async def test_holders_own_delayed_operation_is_refused(driver: Driver) -> None:
    """Schedule 5: an operation was sent, timed out, and arrives after the next one."""
    lease = Lease(10)
    async with driver.connect() as conn:
        async with guard(lease, conn, R) as db:
            await driver.add(db, 1)
        delayed = lease.next_seq()
        async with guard(lease, conn, R) as db:
            await driver.add(db, 1)

        with pytest.raises(StaleFence):
            async with guard(lease, conn, R, seq=delayed) as db:
                await driver.add(db, 100)

    assert await driver.balance() == 2


async def test_repeat_of_the_last_operation_gives_its_answer_and_writes_nothing(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        first = guard(lease, conn, R)
        async with first as db:
            await driver.add(db, 1)
            first.set_answer("receipt ⚓ 7")

        again = guard(lease, conn, R, seq=first.mark.seq)
        async with again as db:
            await driver.add(db, 1)  # a body that overlooks `repeated`

        assert again.repeated
        assert again.answer == "receipt ⚓ 7"
    assert await driver.balance() == 1


async def test_answer_goes_with_the_next_operation(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        first = guard(lease, conn, R)
        async with first:
            first.set_answer("old")
        second = guard(lease, conn, R)
        async with second:
            pass

        again = guard(lease, conn, R, seq=second.mark.seq)
        async with again:
            assert again.repeated

        assert again.answer is None


async def test_operation_that_never_committed_is_not_a_repeat(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        first = guard(lease, conn, R)
        with pytest.raises(ZeroDivisionError):
            async with first as db:
                await driver.add(db, 1)
                raise ZeroDivisionError

        again = guard(lease, conn, R, seq=first.mark.seq)
        async with again as db:
            await driver.add(db, 1)

        assert not again.repeated
    assert await driver.balance() == 1


async def test_once_per_fence_admits_one_operation_of_each_holder(driver: Driver) -> None:
    older, newer = Lease(10), Lease(11)
    async with driver.connect() as conn:
        async with guard(older, conn, R, once_per_fence=True) as db:
            await driver.add(db, 1)
        with pytest.raises(StaleFence):
            async with guard(older, conn, R, once_per_fence=True) as db:
                await driver.add(db, 10)
        repeat = guard(older, conn, R, once_per_fence=True, seq=1)
        async with repeat:
            assert repeat.repeated
        async with guard(newer, conn, R, once_per_fence=True) as db:
            await driver.add(db, 100)

    assert await driver.balance() == 101


async def test_resources_do_not_disturb_each_other(driver: Driver) -> None:
    names = [R, "ünïcode/⚓", "quote'\";--", "back\\slash'", "per%cent %s $1 :first ?", "x" * 400]
    async with driver.connect() as conn:
        for fence, name in enumerate(reversed(names), start=2):
            for seq in (None, 7):
                async with guard(Lease(fence), conn, name, seq=seq) as db:
                    await driver.add(db, 1)
        for fence, name in enumerate(reversed(names), start=2):
            for stale, seq in ((fence - 1, None), (fence, 6)):
                with pytest.raises(StaleFence) as refused:
                    async with guard(Lease(stale), conn, name, seq=seq):
                        pass
                assert refused.value.current == (fence, 7), name

    assert await driver.balance() == 2 * len(names)


# -- failing ---------------------------------------------------------------------------------------


async def test_error_in_the_body_undoes_its_writes_and_the_mark(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with guard(Lease(10), conn, R) as db:
            await driver.add(db, 1)
        with pytest.raises(ZeroDivisionError):
            async with guard(Lease(11), conn, R) as db:
                await driver.add(db, 10)
                raise ZeroDivisionError

        async with guard(Lease(10), conn, R, seq=2) as db:
            await driver.add(db, 100)

    assert await driver.balance() == 101


async def test_failed_statement_in_the_body_leaves_the_connection_usable(driver: Driver) -> None:
    async with driver.connect() as conn:
        with pytest.raises(Exception, match="nonsense"):
            async with guard(Lease(10), conn, R) as db:
                await driver.run(db, "SELECT * FROM nonsense")

        async with guard(Lease(10), conn, R) as db:
            await driver.add(db, 1)

    assert await driver.balance() == 1


async def test_lease_lost_in_the_body_writes_nothing(driver: Driver) -> None:
    lease = Lease(10)
    async with driver.connect() as conn:
        with pytest.raises(LeaseLost):
            async with guard(lease, conn, R) as db:
                await driver.add(db, 1)
                lease.lost = True

        async with guard(Lease(9), conn, R) as db:
            await driver.add(db, 10)

    assert await driver.balance() == 10


async def test_lost_lease_starts_nothing(driver: Driver) -> None:
    async with driver.connect() as conn:
        with pytest.raises(LeaseLost):
            async with guard(Lease(10, lost=True), conn, R):
                pytest.fail("the body ran without a lease")

        async with guard(Lease(1), conn, R) as db:
            await driver.add(db, 1)

    assert await driver.balance() == 1


@pytest.mark.parametrize("name", ["psycopg", "psycopg-async"])
async def test_pipeline_of_psycopg_is_refused(make_driver: Callable[[str], Driver], name: str) -> None:
    """There an accepted claim looks like a repeated one, and what the body writes would be taken back in silence."""
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        async with guard(Lease(10), conn, R) as db:
            await driver.add(db, 1)
        async with AsyncExitStack() as stack:
            piped = conn.pipeline()
            if hasattr(piped, "__aenter__"):
                await stack.enter_async_context(piped)
            else:
                stack.enter_context(piped)
            await driver.read(conn)
            with pytest.raises(ValueError, match="pipeline"):
                async with guard(Lease(11), conn, R):
                    raise AssertionError("entered")
    assert await driver.balance() == 1


async def test_lease_without_a_fence_cannot_guard(driver: Driver) -> None:
    async with driver.connect() as conn:
        with pytest.raises(ValueError, match="without a fence"):
            guard(Lease(0), conn, R)


async def test_resource_needs_a_name_that_every_database_can_keep(driver: Driver) -> None:
    async with driver.connect() as conn:
        with pytest.raises(ValueError, match="needs a name"):
            guard(Lease(1), conn, "")
        with pytest.raises(ValueError, match="NUL"):
            guard(Lease(1), conn, "accounts/42\0x")


async def test_numbers_begin_with_one(driver: Driver) -> None:
    async with driver.connect() as conn:
        with pytest.raises(ValueError, match="next_seq"):
            guard(Lease(10), conn, R, seq=0)
