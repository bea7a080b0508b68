"""taskiq over NATS JetStream: two processes, 100 jobs at once in each, as is its default.

They pull, BENCH_AT_ONCE messages at a time: who submits to the broker that pushes is one of its consumers as well,
and keeps every third job to itself. With BENCH_KEEP=yes results are kept, in the object store of NATS; otherwise a
job is acknowledged and nothing is left of it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from taskiq_nats import NATSObjectStoreResultBackend, PullBasedJetStreamBroker  # type: ignore[import-not-found]

from bench.peers.driving import Peer, callers_at_once, drive

URL = os.environ["BENCH_NATS"]
CONSUMER = "bench"
AT_ONCE = int(os.environ["BENCH_AT_ONCE"])

# Without a timeout its worker does not end.
broker = PullBasedJetStreamBroker(servers=[URL], durable=CONSUMER, pull_consume_batch=AT_ONCE, pull_consume_timeout=1.0)
if os.environ["BENCH_KEEP"] == "yes":
    broker = broker.with_result_backend(NATSObjectStoreResultBackend(servers=[URL]))


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]
async def noop() -> None:
    pass


def main() -> None:
    with asyncio.Runner() as runner:
        runner.run(broker.startup())

        async def acknowledged() -> int:
            known = await broker.js.consumer_info(broker.stream_name, CONSUMER)
            return int(known.ack_floor.stream_seq)

        drive(
            Peer(
                worker=[sys.executable, "-m", "taskiq", "worker", "bench.peers.taskiq_noop:broker"],
                submit=callers_at_once(runner, noop.kiq),
                # Acknowledged when the result is kept.
                finished=lambda: runner.run(acknowledged()),
            )
        )


if __name__ == "__main__":
    main()
