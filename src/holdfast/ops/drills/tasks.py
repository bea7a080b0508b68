"""What the workers of a drill do. Everything they do is written into a journal and a book, from which the drill judges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.locks.errors import LockError
from holdfast.locks.guards import guard
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.drills.book import Journal, open_book
from holdfast.worker import SyncJob, Worker

worker = Worker(slots=4, drain_s=1)

LOOK_S = 0.02
TICKS = 25
"""How long later attempts of an endless job take."""


@dataclass
class Believer:
    """A lease that never asks the clock: whoever was stopped between the check and the write is like this."""

    key: str
    fence: int
    _last_seq: int = 0

    def next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq

    @property
    def numbered(self) -> bool:
        return self._last_seq > 0

    def check(self) -> None:
        """Believes itself."""

    def fence_refused(self, resource: str) -> None:
        """Tells nobody."""


@worker.task("drill.*", isolation="process")
def quick(job: SyncJob) -> object:
    """Work for a while, and say so."""
    journal = Journal(Path(job.payload["folder"]))
    journal.note("ran", job.id, job.attempt)
    SYSTEM.sleep(job.payload.get("seconds", 0.0))
    return {"by": os.getpid()}


@worker.task("drill.tick", isolation="process")
def tick(job: SyncJob) -> object:
    """Leave a trace for as long as it lives: by it one sees when it stopped. The first attempt never ends by itself."""
    journal = Journal(Path(job.payload["folder"]))
    ticks = 0
    while job.attempt == 1 or ticks < TICKS:
        journal.note("alive", job.id, job.attempt)
        SYSTEM.sleep(LOOK_S)
        ticks += 1
    return {"by": os.getpid()}


@worker.task("drill.write", isolation="thread")
def write(job: SyncJob) -> object:
    """Write under the fence, wait for a word, and write again: stopped in between, the second write comes too late."""
    folder = Path(job.payload["folder"])
    journal, lease = Journal(folder), Believer(job.id, job.fence)
    journal.note(_write(folder, lease, job), job.id, job.attempt)
    while job.attempt == 1 and not (folder / "go").exists():
        SYSTEM.sleep(LOOK_S)
    journal.note(_write(folder, lease, job), job.id, job.attempt)
    return {"by": os.getpid()}


def _write(folder: Path, lease: Believer, job: SyncJob) -> str:
    with open_book(folder) as book:
        try:
            with guard(lease, book, f"account/{job.id}"):
                book.execute(
                    "INSERT INTO entries (item, fence, attempt) VALUES (?, ?, ?)", (job.id, lease.fence, job.attempt)
                )
        except LockError:
            return "refused"
    return "accepted"


@worker.task("drill.pay", isolation="process")
def pay(job: SyncJob) -> object:
    """Something that cannot be undone, at a bank that does not recognise a repetition."""
    return job.once("pay", _pay, job)


def _pay(job: SyncJob) -> object:
    with open_book(Path(job.payload["folder"])) as book:
        book.execute("INSERT INTO entries (item, fence, attempt) VALUES (?, ?, ?)", (job.id, job.fence, job.attempt))
    SYSTEM.sleep(job.payload.get("seconds", 0.0))
    return {"paid": True}
