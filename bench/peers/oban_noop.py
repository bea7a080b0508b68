"""Oban's Python port on Postgres: jobs enqueued by the hundred, one node with BENCH_AT_ONCE jobs of the queue at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import psycopg
from oban import Oban, worker  # type: ignore[import-not-found]

from bench.peers.driving import Peer, drive, in_batches

URL = os.environ["BENCH_POSTGRES"]


@worker(queue="default")
class Noop:
    async def process(self, job: object) -> None:
        pass


def main() -> None:
    from bench.peers.oban_noop import Noop  # not `__main__.Noop`, by which the node would not know it

    oban = [sys.executable, "-m", "oban"]
    subprocess.run([*oban, "install", "--dsn", URL], check=True, stdout=subprocess.DEVNULL)
    with asyncio.Runner() as runner, psycopg.connect(URL, autocommit=True) as looking:
        client = Oban(pool=runner.run(Oban.create_pool(URL)))

        def finished() -> int:
            found = looking.execute("SELECT count(*) FROM oban_jobs WHERE state = 'completed'").fetchone()
            assert found is not None
            return int(found[0])

        new = Noop.new  # type: ignore[attr-defined]
        drive(
            Peer(
                worker=[
                    *oban, "start", "--dsn", URL, "--queues", f"default:{os.environ['BENCH_AT_ONCE']}",
                    "--cron-modules", "bench.peers.oban_noop",
                ],
                submit=in_batches(runner, lambda jobs: client.enqueue_many(*(new({}) for _ in range(jobs)))),
                finished=finished,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
