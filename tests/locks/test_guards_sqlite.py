"""Guards on SQLite: operations without a number, which write nothing but what they were asked to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from fenced_lease import Lease

from holdfast.locks.guards import guard

R = "accounts/42"
ADD = "UPDATE accounts SET balance = balance + 1"


class Interrupted:
    """A connection whose commit is followed, or replaced, by an error."""

    committed: BaseException | None = None
    refused: BaseException | None = None

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT" and self.refused is not None:
            raise self.refused
        done = super().execute(statement, *values)  # type: ignore[misc]  # of the driver's class
        if statement == "COMMIT" and self.committed is not None:
            raise self.committed
        return done


class ThroughSqlite3(Interrupted, sqlite3.Connection):
    pass


class ThroughApsw(Interrupted, apsw.Connection):  # type: ignore[misc]  # it takes more arguments
    pass


@pytest.fixture(params=[ThroughSqlite3, ThroughApsw])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    conn = request.param(str(tmp_path / "bank.db"))
    if request.param is ThroughSqlite3:
        conn.isolation_level = None
    conn.execute("CREATE TABLE accounts (balance INTEGER)")
    conn.execute("INSERT INTO accounts VALUES (0)")
    yield conn
    conn.close()


def rows(bank: Any, statement: str) -> list[Any]:
    found: list[Any] = bank.execute(statement).fetchall()
    return found


def add(bank: Any, lease: Lease, seq: int | None = None) -> Any:
    made = guard(lease, bank, R, seq=seq)
    with made as db:
        db.execute(ADD)
    return made


def changes(bank: Any) -> int:
    return int(bank.total_changes if isinstance(bank, sqlite3.Connection) else bank.total_changes())


def test_second_write_of_a_lease_changes_nothing_but_its_own_row(bank: Any) -> None:
    lease = Lease(10)
    add(bank, lease)
    before = changes(bank)

    add(bank, lease)

    assert changes(bank) == before + 1
    assert rows(bank, "SELECT fence, seq FROM holdfast_fences") == [(10, 0)]


def test_lease_that_has_given_numbers_numbers_every_operation(bank: Any) -> None:
    """Else one whose number was taken before could come after it, and be accepted."""
    lease = Lease(10)
    add(bank, lease)
    lease.next_seq()

    add(bank, lease)

    assert rows(bank, "SELECT fence, seq FROM holdfast_fences") == [(10, 2)]


def test_numbers_of_the_users_own_say_nothing_about_an_operation_without_one(bank: Any) -> None:
    """It is neither a repeat of number 1 nor older than it."""
    lease = Lease(10)
    add(bank, lease, seq=1)

    assert not add(bank, lease).repeated
    assert add(bank, lease, seq=1).repeated
    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]


def test_claim_in_the_callers_own_transaction_keeps_other_writers_out(bank: Any) -> None:
    """BEGIN alone locks nothing: the mark's own write does."""
    lease = Lease(10)
    add(bank, lease)
    # Of the same library: two of them in one process do not see each other's locks.
    rival = type(bank)(rows(bank, "PRAGMA database_list")[0][2])
    rival.execute("PRAGMA busy_timeout = 0")

    bank.execute("BEGIN")
    with guard(lease, bank, R), pytest.raises((sqlite3.OperationalError, apsw.BusyError), match="locked"):
        rival.execute("BEGIN IMMEDIATE")
    bank.execute("COMMIT")
    rival.close()


def test_commit_that_sqlite_refuses_can_be_repeated_by_its_mark(bank: Any) -> None:
    lease = Lease(10)
    add(bank, lease)
    bank.refused = (sqlite3.OperationalError if isinstance(bank, sqlite3.Connection) else apsw.FullError)("disk full")
    first = guard(lease, bank, R)
    with pytest.raises(type(bank.refused)), first as db:
        db.execute(ADD)
    bank.refused = None

    again = add(bank, lease, seq=first.mark.seq)

    assert not again.repeated
    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]


def test_interruption_after_the_commit_is_not_taken_for_a_failure(bank: Any) -> None:
    """Without a number nobody can tell: it gets none any more, and whoever repeats it is told."""
    lease = Lease(10)
    add(bank, lease)
    bank.committed = KeyboardInterrupt()
    first = guard(lease, bank, R)
    with pytest.raises(KeyboardInterrupt), first as db:
        db.execute(ADD)
    bank.committed = None

    with pytest.raises(ValueError, match="next_seq"):
        add(bank, lease, seq=first.mark.seq)

    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]


def test_interruption_after_the_commit_of_a_numbered_operation_is_found_out(bank: Any) -> None:
    lease = Lease(10)
    seq = lease.next_seq()
    bank.committed = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        add(bank, lease, seq=seq)
    bank.committed = None

    assert add(bank, lease, seq=seq).repeated
    assert rows(bank, "SELECT balance FROM accounts") == [(1,)]
