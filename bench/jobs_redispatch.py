"""How long a job stands still when what runs it is killed (SIGKILL), with real processes and default settings.

From the kill to the first line of the handler's second attempt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import NamedTuple

from bench.harness import Contender, Figures, Sample
from bench.jobs_plane import Running, kill, plane, wait_until
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded
from holdfast.core.topic import Topic

LEASE_S = Topic(name="mark").lease_s
CHILD_ROUNDS = 5
RESTART_ROUNDS = 3
#: What systemd waits before it starts a service again, unless told otherwise.
SERVICE_MANAGER_S = 0.1


class Mark(NamedTuple):
    """A line that the handler left: who it was, and when, on the clock that all processes share."""

    pid: int
    at: float


def child_killed(url: str, seconds: float) -> Figures:
    """The handler's process dies; its worker sees it at once."""
    taken = []
    with plane(gettempdir()) as running:
        running.start_worker("patient")
        for n in range(CHILD_ROUNDS):
            file = _begin(running, n)
            killed_at = time.monotonic()
            kill(_marks(file)[0].pid)
            taken.append(_began_again(file) - killed_at)
    return {"s": median(taken)}


def worker_restarted(url: str, seconds: float) -> Figures:
    """The whole worker dies, and its service manager starts it again."""
    taken = []
    with plane(gettempdir()) as running:
        for n in range(RESTART_ROUNDS):
            worker = running.start_worker("patient")
            file = _begin(running, n)
            killed_at = time.monotonic()
            worker.kill()
            worker.wait()
            time.sleep(SERVICE_MANAGER_S)
            restarted = running.launch_worker("patient")
            taken.append(_began_again(file) - killed_at)
            restarted.terminate()
            restarted.wait()
    return {"s": median(taken)}


def worker_gone(url: str, seconds: float) -> Figures:
    """The whole worker dies and never returns; another one is there. Nobody can prove the death: the lease decides."""
    with plane(gettempdir()) as running:
        first = running.start_worker("patient", "--name", "first")
        file = _begin(running, 0)
        running.start_worker("patient", "--name", "second")
        killed_at = time.monotonic()
        first.kill()
        first.wait()
        return {"s": _began_again(file) - killed_at}


def _begin(running: Running, n: int) -> Path:
    """Submit a job, and wait until its first attempt hangs."""
    file = running.folder / f"marks-{n}"
    running.client.submit("mark", {"file": str(file)})
    wait_until(lambda: len(_marks(file)) == 1, "the first attempt has begun")
    return file


def _began_again(file: Path) -> float:
    wait_until(lambda: len(_marks(file)) == 2, "the second attempt has begun")
    return _marks(file)[1].at


def _marks(file: Path) -> list[Mark]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Mark(int(pid), float(at)) for pid, at in map(str.split, lines)]


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def row(work: str, contender: str, limit_s: float) -> Row:
        return bounded(work, samples, Figure(contender, "s", "s"), Goal(limit_s, None, "s", most=True))

    return [
        row("a job runs again after kill -9 of its handler's process", "child", 1),
        row("… of its worker, which is restarted on the same host", "restarted", 2),
        row(f"… of its worker, which never returns (lease of {LEASE_S:.0f} s)", "gone", LEASE_S + 1),
    ]


REDISPATCH = Subject(
    name="jobs-redispatch",
    server="disk",
    contenders=[
        Contender(name="child", run=child_killed),
        Contender(name="restarted", run=worker_restarted),
        Contender(name="gone", run=worker_gone),
    ],
    repetitions=3,
    rows=_rows,
)
