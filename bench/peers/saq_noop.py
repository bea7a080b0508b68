"""SAQ on Redis, results kept there for its usual ten minutes; BENCH_AT_ONCE jobs at once, otherwise default."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from redis import Redis
from saq import Queue  # type: ignore[import-not-found]

from bench.peers.driving import Peer, callers_at_once, drive

URL = os.environ["BENCH_REDIS"]

queue = Queue.from_url(URL)


async def noop(ctx: dict[str, Any]) -> None:
    pass


settings = {"queue": queue, "functions": [noop], "concurrency": int(os.environ["BENCH_AT_ONCE"])}


def main() -> None:
    submitted = 0
    looking = Redis.from_url(URL)
    with asyncio.Runner() as runner:

        async def submit() -> None:
            nonlocal submitted
            submitted += 1
            await queue.enqueue("noop")

        runner.run(queue.connect())
        drive(
            Peer(
                worker=[sys.executable, "-m", "saq", "bench.peers.saq_noop.settings"],
                submit=callers_at_once(runner, submit),
                # A job leaves this set with its result being written, in one transaction.
                finished=lambda: submitted - looking.zcard("saq:default:incomplete"),
            )
        )


if __name__ == "__main__":
    main()
