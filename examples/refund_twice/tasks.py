"""Refunds whose worker process dies between the payment and the bank's answer: on its first attempt, every time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast.worker import SyncJob, Worker

worker = Worker(name="cashier", slots=8, backlog=200)


@worker.task("refund.bare")
def refund_bare(job: SyncJob) -> None:
    """As it is usually written: the job is done again, and so is everything in it."""
    pay(job)


@worker.task("refund.once")
def refund_once(job: SyncJob) -> None:
    job.once("pay", pay, job)


def pay(job: SyncJob) -> bool:
    # One write of a line at the end of a file: the bank has it, whatever becomes of this process.
    with Path(job.payload["book"]).open("ab", buffering=0) as book:
        book.write(f"{job.payload['order']}\n".encode())
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
