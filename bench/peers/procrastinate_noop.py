"""Procrastinate on Postgres: jobs deferred by the hundred, one worker with as many jobs at once as BENCH_AT_ONCE says."""

from __future__ import annotations

import asyncio
import os
import sys

import procrastinate  # type: ignore[import-not-found]
import psycopg

from bench.peers.driving import Peer, drive, in_batches

URL = os.environ["BENCH_POSTGRES"]

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))


@app.task(name="noop")  # type: ignore[untyped-decorator]
async def noop() -> None:
    pass


def main() -> None:
    with asyncio.Runner() as runner, psycopg.connect(URL, autocommit=True) as looking:

        async def open_with_tables() -> None:
            await app.open_async()
            await app.schema_manager.apply_schema_async()

        runner.run(open_with_tables())

        def finished() -> int:
            found = looking.execute("SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'").fetchone()
            assert found is not None
            return int(found[0])

        drive(
            Peer(
                worker=[
                    sys.executable, "-m", "procrastinate", "--app", "bench.peers.procrastinate_noop.app",
                    "worker", "--concurrency", os.environ["BENCH_AT_ONCE"],
                ],
                submit=in_batches(runner, lambda jobs: noop.batch_defer_async(*[{}] * jobs)),
                finished=finished,
            )
        )  # fmt: skip
        runner.run(app.close_async())


if __name__ == "__main__":
    main()
