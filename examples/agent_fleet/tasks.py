"""What the agents of the fleet do. `tasks.py URL NAME` runs a worker that does it.

Everything that reaches the world outside goes through `job.once`. The world keeps a book of its
own ($FLEET_WORLD, a SQLite file), by which the story counts at the end what happened twice.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import apsw

from holdfast.worker import SyncJob, Worker, serve

worker = Worker(name="agent", slots=4, backlog=4, drain_s=5)


@worker.task("mail.send")
def send_mail(job: SyncJob) -> Any:
    return job.once("send", book_by_key, job.id, "send", idempotent=True)


@worker.task("report.write")
def write_report(job: SyncJob) -> Any:
    time.sleep(job.payload["read_s"])
    page = job.once("file", book_by_key, job.id, "file", idempotent=True)
    time.sleep(job.payload.get("proofread_s", 0.0))
    return page


@worker.task("research.ask")
def ask(job: SyncJob) -> Any:
    if job.attempt <= job.payload["failures"]:
        raise ConnectionError("the model is overloaded")
    return job.once("answer", book_by_key, job.id, "answer", idempotent=True)


@worker.task("refund.pay")
def pay_refund(job: SyncJob) -> Any:
    # The bank does not recognise a repetition, and the topic's risk is high: nobody may simply ask again.
    return job.once("pay", pay, job.id, job.payload.get("bank_answers_after_s", 0.0))


def book_by_key(job_id: str, what: str, *, idempotency_key: str) -> Any:
    """The other side knows a request by its key: after a crash in the middle it may be asked again."""
    # One statement: looking first and writing then, in one transaction, is refused whenever another
    # agent wrote in between, and a refusal here is a failure of the attempt.
    world().execute(
        "INSERT INTO effect SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM effect WHERE key = ?3)",
        (job_id, what, idempotency_key),
    )
    return {"key": idempotency_key}


def pay(job_id: str, answers_after_s: float) -> Any:
    world().execute("INSERT INTO effect VALUES (?, 'pay', '')", (job_id,))
    time.sleep(answers_after_s)  # paid, and nobody on our side knows it yet
    return {"paid": True}


def world() -> apsw.Connection:
    connection = apsw.Connection(os.environ["FLEET_WORLD"])
    connection.set_busy_timeout(5000)
    return connection


if __name__ == "__main__":
    _, url, name = sys.argv
    serve(f"{__file__}:worker", url=url, name=name, labels={"desk": name})
