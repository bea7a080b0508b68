"""The steps of a payout and what undoes them. Each writes a line into the ledger, once over all its attempts."""

from __future__ import annotations

from pathlib import Path

from holdfast.worker import Fatal, Job, Worker

worker = Worker(name="cashier", slots=4)
LIMIT = 1000
"""What the bank pays at most."""


def enter(job: Job, what: str) -> str:
    line = f"{job.payload['order']} {what} {job.payload['amount']}"
    with Path(job.payload["ledger"]).open("a") as ledger:
        ledger.write(f"{line}\n")
    return line


async def once(job: Job, what: str) -> str:
    entered: str = await job.once(what, enter, job, what)
    return entered


@worker.task("payout.reserve", isolation="async")
async def reserve(job: Job) -> str:
    return await once(job, "reserve")


@worker.task("payout.release", isolation="async")
async def release(job: Job) -> str:
    return await once(job, "release")


@worker.task("payout.book", isolation="async")
async def book(job: Job) -> str:
    return await once(job, "book")


@worker.task("payout.unbook", isolation="async")
async def unbook(job: Job) -> str:
    return await once(job, "unbook")


@worker.task("payout.pay", isolation="async")
async def pay(job: Job) -> str:
    if job.payload["amount"] > LIMIT:
        raise Fatal("the bank refuses so much")
    return await once(job, "pay")
