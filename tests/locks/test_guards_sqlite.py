"""Guards on SQLite: operations without a number, which write nothing but what they were asked to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
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


class DeletedAndUnsure(apsw.VFS):
    """A file system that deletes the journal, which is the commit, and then cannot say whether that will last."""

    def __init__(self) -> None:
        super().__init__("deleted-and-unsure", "")
        self.is_unsure = False

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  (SQLite's)
        super().xDelete(filename, syncdir)
        if self.is_unsure:
            raise apsw.IOError("the directory was not synced")


def test_error_of_the_disk_after_the_commit_is_not_taken_for_a_failure(tmp_path: Path) -> None:
    files = DeletedAndUnsure()
    bank = apsw.Connection(str(tmp_path / "bank.db"), vfs="deleted-and-unsure")
    bank.execute("CREATE TABLE accounts (balance INTEGER); INSERT INTO accounts VALUES (0)")
    lease = Lease(10)
    add(bank, lease)
    first = guard(lease, bank, R)
    files.is_unsure = True
    with pytest.raises(apsw.IOError), first as db:
        db.execute(ADD)
    files.is_unsure = False

    with pytest.raises(ValueError, match="next_seq"):
        add(bank, lease, seq=first.mark.seq)

    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]
    bank.close()


def test_hook_that_fails_after_the_commit_is_not_taken_for_a_failure(tmp_path: Path) -> None:
    bank = apsw.Connection(str(tmp_path / "bank.db"))
    bank.pragma("journal_mode", "wal")
    bank.execute("CREATE TABLE accounts (balance INTEGER); INSERT INTO accounts VALUES (0)")
    lease = Lease(10)
    add(bank, lease)

    def checkpoint(*_: object) -> int:
        raise apsw.BusyError("somebody reads")

    bank.set_wal_hook(checkpoint)
    first = guard(lease, bank, R)
    with pytest.raises(apsw.BusyError), first as db:
        db.execute(ADD)
    bank.set_wal_hook(None)

    with pytest.raises(ValueError, match="next_seq"):
        add(bank, lease, seq=first.mark.seq)

    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]
    bank.close()


def test_guard_inside_one_whose_mark_was_read_does_not_make_it_stale(bank: Any) -> None:
    lease = Lease(10)
    outer = guard(lease, bank, R)
    with outer as db:
        assert outer.mark == (10, 1)
        add(bank, lease)
        db.execute(ADD)

    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]
    assert rows(bank, "SELECT fence, seq FROM holdfast_fences") == [(10, 2)]


def test_number_outlives_a_savepoint_of_the_body(bank: Any) -> None:
    lease = Lease(10)
    first = guard(lease, bank, R)
    with first as db:
        db.execute(ADD)
        db.execute("SAVEPOINT attempt")
        seq = first.mark.seq
        db.execute("ROLLBACK TO attempt")

    assert add(bank, lease, seq=seq).repeated
    assert rows(bank, "SELECT balance FROM accounts") == [(1,)]


@pytest.mark.parametrize("asks", [lambda made: made.mark, lambda made: made.set_answer("done")])
def test_mark_does_not_outlive_what_the_body_has_rolled_back(bank: Any, asks: Callable[[Any], Any]) -> None:
    """Else whoever repeats it is told that it was done."""
    if isinstance(bank, sqlite3.Connection):
        bank.isolation_level = "DEFERRED"  # a write would open another transaction, and the commit succeed
    lease = Lease(10)
    add(bank, lease)
    first = guard(lease, bank, R)
    with pytest.raises((sqlite3.OperationalError, apsw.SQLError), match="no transaction"), first as db:
        db.execute(ADD)
        asks(first)
        db.execute("ROLLBACK")

    assert rows(bank, "SELECT fence, seq, answer FROM holdfast_fences") == [(10, 0, None)]


def test_what_the_body_has_committed_itself_is_recognised_by_the_number_it_got_before(bank: Any) -> None:
    lease = Lease(10)
    first = guard(lease, bank, R)
    with pytest.raises((sqlite3.OperationalError, apsw.SQLError), match="no transaction"), first as db:
        db.execute(ADD)
        seq = first.mark.seq
        db.execute("COMMIT")

    assert add(bank, lease, seq=seq).repeated
    assert rows(bank, "SELECT balance FROM accounts") == [(1,)]


def test_what_the_body_has_committed_gets_no_number_afterwards(bank: Any) -> None:
    lease = Lease(10)
    add(bank, lease)
    first = guard(lease, bank, R)
    with pytest.raises(KeyboardInterrupt), first as db:
        db.execute(ADD)
        db.execute("COMMIT")
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="next_seq"):
        add(bank, lease, seq=first.mark.seq)

    assert rows(bank, "SELECT balance FROM accounts") == [(2,)]
