"""Two workers share a lock. One is paused for longer than its lease lasts, then wakes up and writes.

Told twice with real processes and a real SIGSTOP: once with guarded writes, once without. The exit
code is 0 if the guard refused the late write, and its absence cost somebody a deposit.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import apsw
from stage import Event, OffScript, Stage, Worker, on_stage

DEPOSITS_EACH = 5


@dataclass(frozen=True)
class Outcome:
    accepted: int
    refused: int
    acknowledged: int
    balance: int

    @property
    def lost(self) -> int:
        return self.acknowledged - self.balance


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"Workers A and B bring {DEPOSITS_EACH} deposits of 1 each to one account. Each time they read the balance,")
    print("work on it, and write it: under a lock with a ttl of 1.5 s. A is paused in the middle for longer.")
    try:
        guarded = tell("With the guard: the account checks the fence of every reader and writer", "guarded")
        unguarded = tell("The same without the guard", "unguarded")
    except OffScript as surprise:
        print(f"\nnot what should happen: {surprise}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    print_summary(guarded, unguarded)
    return 0 if guarded.refused >= 1 and guarded.lost == 0 and unguarded.lost >= 1 else 1


def tell(title: str, mode: str) -> Outcome:
    print(f"\n{title}\n\n{'time':>8}  {'who':<6} {'fence':<17} what happens")
    with TemporaryDirectory(prefix="holdfast-story-") as folder:
        bank = make_bank(folder)
        with on_stage("AB", [folder, str(DEPOSITS_EACH), mode]) as stage:
            a, b = stage.workers
            stage.wait(a, "wrote")
            before = pause_in_the_middle(stage, a)
            stage.narrate("story", "stops A (SIGSTOP) between its read and its write")

            takeover = stage.wait(b, "read")
            stage.narrate("story", f"A's lease ran out; B took over after {takeover['at'] - before['at']:.1f} s")
            stage.wait(b, "ended")

            stage.narrate("story", f"wakes A (SIGCONT), which still means to write balance {before['balance'] + 1}")
            balance = read_balance(bank)
            a.signal(signal.SIGCONT)
            if stage.wait(a, "refused", "wrote")["event"] == "refused":
                stage.narrate("story", f"the balance is still {read_balance(bank)}; A begins again, with a new lease")
            else:
                stage.narrate("story", f"the balance was {balance}: deposits that B was told were safe are gone")
            stage.wait(a, "ended")
        outcome = audit(bank, stage)
        bank.close()
    return outcome


def pause_in_the_middle(stage: Stage, worker: Worker) -> Event:
    """Stop the worker between its read and its write. Its read, and when that was."""
    while True:
        read = stage.wait(worker, "read")
        worker.signal(signal.SIGSTOP)
        if stage.is_silent(worker, for_s=0.1):
            return read
        # Too late, on a busy machine: it had written already. Let it go on, and try again.
        worker.signal(signal.SIGCONT)


def make_bank(folder: str) -> apsw.Connection:
    bank = apsw.Connection(f"{folder}/accounts.db")
    bank.execute("PRAGMA journal_mode = WAL")
    bank.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
    bank.execute("CREATE TABLE journal (fence INTEGER NOT NULL)")
    bank.execute("INSERT INTO account VALUES (1, 0)")
    return bank


def read_balance(bank: apsw.Connection) -> int:
    return int(bank.execute("SELECT balance FROM account WHERE id = 1").get)


def audit(bank: apsw.Connection, stage: Stage) -> Outcome:
    """What the account says, beside what the workers were told."""
    ((accepted,),) = bank.execute("SELECT count(*) FROM journal")
    events = [said["event"] for said in stage.said]
    return Outcome(accepted, events.count("refused"), events.count("wrote"), read_balance(bank))


def print_summary(guarded: Outcome, unguarded: Outcome) -> None:
    outcomes = guarded, unguarded
    rows: dict[str, list[object]] = {
        "writes accepted": [o.accepted for o in outcomes],
        "stale writes refused": [o.refused for o in outcomes],
        "deposits acknowledged": [o.acknowledged for o in outcomes],
        "balance": [o.balance for o in outcomes],
        "deposits lost": [o.lost for o in outcomes],
        "balance correct": ["no" if o.lost else "yes" for o in outcomes],
    }
    print(f"\n{'':<22} {'with guard':>11} {'without':>9}")
    for name, (with_guard, without) in rows.items():
        print(f"{name:<22} {with_guard:>11} {without:>9}")


if __name__ == "__main__":
    sys.exit(main())
