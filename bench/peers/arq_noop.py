"""arq on Redis, results kept there for its usual hour; BENCH_AT_ONCE jobs at once, otherwise default."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from redis import Redis

from bench.peers.driving import Peer, callers_at_once, drive

URL = os.environ["BENCH_REDIS"]
SETTINGS = RedisSettings.from_dsn(URL)


async def noop(ctx: dict[str, Any]) -> None:
    pass


class WorkerSettings:
    functions = (noop,)
    redis_settings = SETTINGS
    max_jobs = int(os.environ["BENCH_AT_ONCE"])


def main() -> None:
    submitted = 0
    looking = Redis.from_url(URL)
    with asyncio.Runner() as runner:
        pool = runner.run(create_pool(SETTINGS))

        async def submit() -> None:
            nonlocal submitted
            submitted += 1
            await pool.enqueue_job("noop")

        drive(
            Peer(
                worker=[sys.executable, "-m", "arq", "bench.peers.arq_noop.WorkerSettings"],
                submit=callers_at_once(runner, submit),
                # A job leaves the queue with its result being written, in one transaction.
                finished=lambda: submitted - looking.zcard("arq:queue"),
            )
        )


if __name__ == "__main__":
    main()
