"""Celery on Redis, broker and result backend, with its default settings: as many processes as cores."""

from __future__ import annotations

import os
import sys

from celery import Celery  # type: ignore[import-not-found]
from redis import Redis

from bench.peers.driving import Peer, drive, one_by_one

REDIS = os.environ["BENCH_REDIS"]


def noop() -> None:
    pass


# Results have a database to themselves, so that they can be counted at no cost.
app = Celery("bench", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
task = app.task(name="noop")(noop)

if __name__ == "__main__":
    results = Redis.from_url(f"{REDIS}/1")
    drive(
        Peer(
            worker=[sys.executable, "-m", "celery", "-A", "bench.peers.celery_noop", "worker"],
            submit=one_by_one(task.delay),
            finished=results.dbsize,
            round_trip=lambda: task.delay().get(),
        )
    )
