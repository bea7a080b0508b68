"""Refunds, each crashing right after the payment: how many are paid twice, without `job.once` and with it?

    experiment.py [CRASHES]

Real crashes: the process that pays is killed (-9) after the bank has booked the payment and before
anybody else knows. The exit code is 0 if `once` let none be paid twice, and none was forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.api import JobView, NewJob
from holdfast.app import serving as plane
from holdfast.client import AsyncClient
from holdfast.config import Settings
from holdfast.core.retry import Backoff
from holdfast.core.states import Risk
from holdfast.core.topic import Topic, Topics
from holdfast.worker import serving as worker

CRASHES = 200
PATIENCE_S = 300.0
LOOK_S = 1.0
TASKS = f"{Path(__file__).with_name('tasks.py')}:worker"
TOPICS = Topics((Topic(name="refund.*", risk=Risk.HIGH, backoff=Backoff(first_s=0.01)),))


@dataclass(frozen=True)
class Outcome:
    refunds: int
    crashes: int
    paid_twice: int
    on_worklist: int
    unpaid: int


async def main(crashes: int) -> int:
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # every crash is meant
    with TemporaryDirectory(prefix="holdfast-refunds-") as folder:
        settings = Settings(store=f"sqlite:///{folder}/plane.db", port=0, topics=TOPICS)
        async with plane(settings) as url, AsyncClient(url) as client, worker(TASKS, url=url):
            bare = await crash(client, "refund.bare", crashes, Path(folder) / "bare")
            once = await crash(client, "refund.once", crashes, Path(folder) / "once")
    print_summary(bare, once)
    return 0 if not once.paid_twice and once.on_worklist == crashes and not once.unpaid else 1


async def crash(client: AsyncClient, topic: str, refunds: int, book: Path) -> Outcome:
    orders = [NewJob(topic=topic, payload={"book": str(book), "order": n}) for n in range(refunds)]
    submitted = await client.submit_many(orders)
    ids = {answer.job.id for answer in submitted if answer.job is not None}
    print(f"{topic}: {refunds} refunds, each to be killed right after it is paid", file=sys.stderr)
    async with asyncio.timeout(PATIENCE_S):
        while not all(map(is_settled, jobs := await jobs_of(client, topic))):
            print(f"{topic}: {sum(job.attempts for job in jobs)} attempts so far", file=sys.stderr)
            await asyncio.sleep(LOOK_S)
    paid = Counter(book.read_text().split())
    unknown = (await client.effects(state="unknown", limit=1000)).items
    return Outcome(
        refunds=len(ids),
        crashes=sum([await crashes_of(client, job_id) for job_id in ids]),
        paid_twice=sum(count > 1 for count in paid.values()),
        on_worklist=sum(effect.job_id in ids for effect in unknown),
        unpaid=refunds - len(paid),
    )


async def jobs_of(client: AsyncClient, topic: str) -> list[JobView]:
    return (await client.list(topic=topic, limit=1000)).items


async def crashes_of(client: AsyncClient, job_id: str) -> int:
    """How often a process died over this job, by its history."""
    events = (await client.events(job_id)).items
    return sum((event.detail.get("error") or {}).get("code") == "worker-child-died" for event in events)


def is_settled(job: JobView) -> bool:
    """Done, or waiting for a person to say whether the payment happened."""
    return job.state == "SUCCEEDED" or (job.error or {}).get("code") == "effect-unknown"


def print_summary(bare: Outcome, once: Outcome) -> None:
    outcomes = bare, once
    rows = {
        "refunds": [o.refunds for o in outcomes],
        "crashes in mid-payment": [o.crashes for o in outcomes],
        "paid twice": [o.paid_twice for o in outcomes],
        "waiting for a person": [o.on_worklist for o in outcomes],
        "not paid": [o.unpaid for o in outcomes],
    }
    print(f"{'':<24} {'without once':>13} {'with once':>10}")
    for name, (without, with_once) in rows.items():
        print(f"{name:<24} {without:>13} {with_once:>10}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else CRASHES)))
