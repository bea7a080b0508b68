"""A plane and its workers as a user starts them, `holdfast up` and `holdfast worker`, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import ROOT
from holdfast.client import Client

TASKS = Path(__file__).with_name("jobs_tasks.py")
PATIENCE_S = 60.0
CLOCK_TICKS_S = os.sysconf("SC_CLK_TCK")


class Running:
    """A plane that runs, and the processes that were started with it."""

    def __init__(self, folder: Path, store: str, *, bus: str = "", dispatch: str = "direct") -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = {"HOLDFAST_STORE": store, "HOLDFAST_BUS": bus, "HOLDFAST_DISPATCH": dispatch}
        self.process = self._start("plane", "up", "--port", "0", settings=settings)
        self.url = self._wait_url()
        self.client = Client(self.url)

    def start_worker(self, which: str, *options: str) -> subprocess.Popen[bytes]:
        """Start the worker that `jobs_tasks.py` calls `which`, and wait until the plane knows it."""
        known = {worker.id for worker in self.client.workers().items}
        process = self.launch_worker(which, *options)
        wait_until(lambda: {worker.id for worker in self.client.workers().items} - known, "the worker is there")
        return process

    def launch_worker(self, which: str, *options: str) -> subprocess.Popen[bytes]:
        """The same without waiting."""
        return self._start("worker", "worker", f"{TASKS}:{which}", "--url", self.url, *options)

    def end(self) -> None:
        self.client.close()
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _start(
        self, log_name: str, *command: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log_name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *command],
                cwd=ROOT,
                env={**os.environ, **(settings or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def _wait_url(self) -> str:
        log = self.folder / "plane.log"
        wait_until(lambda: self.process.poll() is not None or "http://" in log.read_text(), "the plane is up")
        found = re.search(r"http://\S+", log.read_text())
        if found is None:
            raise RuntimeError(f"the plane did not come up:\n{log.read_text()[-2000:]}")
        return found[0]


@contextmanager
def plane(parent: str, *, store: str = "", bus: str = "", dispatch: str = "direct") -> Iterator[Running]:
    """A plane in a folder of its own under `parent`; with a SQLite file there, unless a store's URL is named."""
    with TemporaryDirectory(dir=parent, prefix="plane-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        running = Running(folder, store or f"sqlite:///{folder / 'plane.db'}", bus=bus, dispatch=dispatch)
        try:
            yield running
        finally:
            running.end()


def wait_until(happened: Callable[[], object], what: str, *, every_s: float = 0.01) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(every_s)


def cpu_s(pid: int) -> float:
    """CPU time of a process and of its children, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / CLOCK_TICKS_S
    return own + sum(map(cpu_s, children(pid)))


def children(pid: int) -> list[int]:
    # A thread's children are listed with the thread. One that ends while it is looked at has none.
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, listed.read_text().split())
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
