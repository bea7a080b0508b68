"""DBOS on a SQLite file with its default settings: a queue without limits, in one process."""

from __future__ import annotations

import signal
import sqlite3
import sys
from pathlib import Path

from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]

from bench.peers.driving import Peer, drive

FILE = Path.cwd() / "dbos.sqlite"
LAUNCHED = FILE.with_name("launched")


def noop() -> None:
    pass


def work() -> None:
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{FILE}"})
    DBOS.workflow(name="noop")(noop)
    DBOS.launch()
    DBOS.register_queue("bench")
    LAUNCHED.touch()
    signal.pause()


def client_peer() -> Peer:
    client = DBOSClient(system_database_url=f"sqlite:///{FILE}")

    def submit() -> object:
        return client.enqueue({"workflow_name": "noop", "queue_name": "bench"})

    looking = sqlite3.connect(f"file:{FILE}?mode=ro", uri=True)

    def finished() -> int:
        [count] = looking.execute("SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'").fetchone()
        return int(count)

    return Peer(
        worker=[sys.executable, "-m", "bench.peers.dbos_noop", "work"],
        ready=LAUNCHED.exists,
        submit=submit,
        finished=finished,
        round_trip=lambda: client.enqueue({"workflow_name": "noop", "queue_name": "bench"}).get_result(),
    )


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        drive(client_peer())
