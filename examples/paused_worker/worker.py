"""A worker that brings deposits to an account, one at a time, under a lock.

    worker.py NAME FOLDER DEPOSITS guarded|unguarded

The account is in FOLDER/accounts.db, the locks are in FOLDER/locks.db. Begins when its stdin is
closed. What it does is told on stdout, one line of JSON each.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import AbstractContextManager

import apsw

from holdfast.locks import Lease, LockClass, StaleFence, SyncLocks

WORK_S = 0.4

# "continue" is for this story only: a worker that wakes up too late goes on to write, as if it had
# not looked. The default, "fence", stops it a step earlier with LeaseLost.
ACCOUNT = LockClass("account", ttl=1.5, wait=30, on_renewal_failure="continue")


def main() -> None:
    name, folder, deposits, mode = sys.argv[1:]
    logging.getLogger("holdfast.locks").setLevel(logging.CRITICAL)  # the story tells it in its own words
    bank = apsw.Connection(f"{folder}/accounts.db")
    bank.set_busy_timeout(5000)
    with SyncLocks(f"sqlite:///{folder}/locks.db", holder=name) as locks:
        say("ready")
        sys.stdin.read()
        acknowledged = 0
        while acknowledged < int(deposits):
            try:
                with locks.hold(ACCOUNT, "1") as lease:
                    deposit(bank, lease, guarded=mode == "guarded")
                acknowledged += 1
            except StaleFence as stale:
                # Nothing was written. Come back with a lease of our own.
                say("refused", fence=lease.fence, current=stale.current[0])


def deposit(bank: apsw.Connection, lease: Lease, *, guarded: bool) -> None:
    """Add 1 to the balance: read it, work for a while outside any transaction, write it."""
    # Entering a guard claims the account for this lease's fence: lower fences are refused from then on.
    with lease.guard(bank, "account/1") if guarded else transaction(bank):
        balance = bank.execute("SELECT balance FROM account WHERE id = 1").get
    say("read", fence=lease.fence, balance=balance)

    time.sleep(WORK_S)  # here one of the workers is paused for longer than its lease lasts

    with lease.guard(bank, "account/1") if guarded else transaction(bank):
        bank.execute("UPDATE account SET balance = ? WHERE id = 1", (balance + 1,))
        bank.execute("INSERT INTO journal VALUES (?)", (lease.fence,))
    say("wrote", fence=lease.fence, balance=balance + 1)


def transaction(bank: apsw.Connection) -> AbstractContextManager[object]:
    """Atomic, as in most programs, and blind to who holds the lock."""
    return bank


def say(event: str, **values: int) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


if __name__ == "__main__":
    main()
