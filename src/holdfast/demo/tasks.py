"""What the demo's workers do: nothing outside of their process, but in the way that real work would be done."""

from __future__ import annotations

import os

from holdfast.locks.runtime import SYSTEM
from holdfast.worker import Fatal, SyncJob, Worker

worker = Worker(slots=4, drain_s=3)

PARTS = 10


@worker.task("mail.send")
def send_mail(job: SyncJob) -> object:
    return job.once("send", deliver, job.payload["to"], idempotent=True)


def deliver(to: str, *, idempotency_key: str) -> object:
    SYSTEM.sleep(0.1)
    return {"to": to, "key": idempotency_key}


@worker.task("report.write")
def write_report(job: SyncJob) -> object:
    for part in range(PARTS):
        job.progress({"part": part + 1, "of": PARTS})
        SYSTEM.sleep(job.payload["seconds"] / PARTS)
    return {"pages": PARTS}


@worker.task("research.ask")
def ask(job: SyncJob) -> object:
    if job.attempt <= job.payload["failures"]:
        raise ConnectionError("the model is overloaded")
    SYSTEM.sleep(0.3)
    return {"answer": 42}


@worker.task("refund.pay")
def pay_refund(job: SyncJob) -> object:
    # A bank does not recognise a repetition: after a crash in the middle, a person must find out.
    return job.once("pay", pay, job.payload["crash"])


def pay(crash: bool) -> object:  # noqa: FBT001  (a field of the payload)
    SYSTEM.sleep(0.2)
    if crash:
        os._exit(1)  # paid, and nobody on our side knows it
    return {"paid": True}


@worker.task("invoice.import")
def import_invoice(job: SyncJob) -> object:
    raise Fatal(f"{job.topic}: this is no invoice")  # another attempt would fail as well: a dead letter
