"""Dramatiq on Redis with its results kept there too; otherwise default: a process per core, 8 threads in each."""

from __future__ import annotations

import os
import sys

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]
from redis import Redis

from bench.peers.driving import Peer, drive, one_by_one

REDIS = os.environ["BENCH_REDIS"]

broker = RedisBroker(url=f"{REDIS}/0")
# Results have a database to themselves, so that they can be counted at no cost.
broker.add_middleware(Results(backend=RedisBackend(url=f"{REDIS}/1")))
dramatiq.set_broker(broker)


def noop() -> int:
    return 1  # None is no result to Dramatiq


actor = dramatiq.actor(noop, store_results=True)

if __name__ == "__main__":
    results = Redis.from_url(f"{REDIS}/1")
    drive(
        Peer(
            worker=[sys.executable, "-m", "dramatiq", "bench.peers.dramatiq_noop"],
            submit=one_by_one(actor.send),
            finished=results.dbsize,
            round_trip=lambda: actor.send().get_result(block=True),
        )
    )
