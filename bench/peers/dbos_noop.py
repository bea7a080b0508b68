"""DBOS on Postgres, or on a SQLite file where no server is named, with its default settings: a queue without
limits, in one process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]
from sqlalchemy import create_engine, text

from bench.peers.driving import Peer, drive, one_by_one

URL = os.environ.get("BENCH_POSTGRES") or f"sqlite:///{Path.cwd() / 'dbos.sqlite'}"
LAUNCHED = Path.cwd() / "launched"


def noop() -> None:
    pass


def work() -> None:
    DBOS(config={"name": "bench", "system_database_url": URL})
    DBOS.workflow(name="noop")(noop)
    DBOS.launch()
    DBOS.register_queue("bench")
    LAUNCHED.touch()
    signal.pause()


def client_peer() -> Peer:
    client = DBOSClient(system_database_url=URL)

    def submit() -> object:
        return client.enqueue({"workflow_name": "noop", "queue_name": "bench"})

    return Peer(
        worker=[sys.executable, "-m", "bench.peers.dbos_noop", "work"],
        ready=LAUNCHED.exists,
        submit=one_by_one(submit),
        finished=successes,
        round_trip=lambda: client.enqueue({"workflow_name": "noop", "queue_name": "bench"}).get_result(),
    )


def successes() -> int:
    with LOOKING.connect() as connection:
        return int(connection.scalar(COUNT))


ON_POSTGRES = URL.startswith("postgresql")
LOOKING = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
COUNT = text(f"SELECT count(*) FROM {'dbos.' if ON_POSTGRES else ''}workflow_status WHERE status = 'SUCCESS'")

if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        drive(client_peer())
