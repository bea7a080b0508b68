"""The machinery behind the story: a plane, its workers, the world's book, and a line of progress."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from holdfast.api import JobView
from holdfast.client import Client

PATIENCE_S = 30.0
TICK_S = 0.1
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "DENIED")
TOPICS = """
[topics."*"]
lease_s = 2
max_attempts = 5
backoff = { first_s = 0.3, cap_s = 1.0 }

[topics."refund.*"]
lease_s = 2
max_attempts = 5
risk = "high"
"""


class OffScript(Exception):
    """Something else happened than the story says."""


class Process:
    """A process of the story. Its log is kept, and shown if it fails us."""

    def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as file:
            # A session of its own: Ctrl-C reaches the story alone, which then ends its processes.
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it if it still runs (a stopped process dies of SIGKILL too), and reap it."""
        self._process.kill()
        self._process.wait()


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = make_world(folder / "world.db")
        self.processes: list[Process] = []
        self.resolved: list[str] = []
        """Jobs whose effect a person had to look up."""
        self._began = time.monotonic()
        self._line = ""

    def open(self) -> None:
        (self.folder / "holdfast.toml").write_text(TOPICS)
        given = ["--config", f"{self.folder}/holdfast.toml", "--store", f"sqlite:///{self.folder}/plane.db"]
        self.plane = self._start("plane", ["-m", "holdfast", "up", *given, "--port", "0"])
        self.url = self._wait_url()
        self.client = Client(self.url)

    def start_worker(self, name: str) -> Process:
        """Start a worker, and wait until the plane knows it."""
        before = {worker.id for worker in self.client.workers().items}
        process = self._start(name, [str(Path(__file__).with_name("tasks.py")), self.url, name])
        self.until(f"worker {name} is there", lambda: self._is_new(name, before))
        return process

    def until(self, what: str, happened: Callable[[], object]) -> None:
        """Wait for something, and show how far the jobs are meanwhile. Raises `OffScript` if it never comes."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if time.monotonic() > deadline:
                raise OffScript(f"not within {PATIENCE_S:.0f} s: {what}\n{self._logs()}")
            if not self.plane.runs:
                raise OffScript(f"the plane ended\n{self._logs()}")
            self.show_progress()
            time.sleep(TICK_S)

    def jobs(self) -> list[JobView]:
        return self.client.list(limit=1000).items

    def booked(self, job_id: str) -> bool:
        return bool(self.world.execute("SELECT count(*) FROM effect WHERE job = ?", (job_id,)).get)

    def refused(self) -> int:
        """Results, progress and effects that came too late, as the plane counts them."""
        with urllib.request.urlopen(f"{self.url}/metrics") as page:
            text = page.read().decode()
        return round(sum(map(float, re.findall(r"^holdfast_attempts_refused_total\{.*\} (\S+)$", text, re.MULTILINE))))

    def narrate(self, who: str, what: str) -> None:
        self._clear()
        print(f"{time.monotonic() - self._began:6.2f} s  {who:<6} {what}", flush=True)

    def show_progress(self) -> None:
        """One line, written over again. Nothing where the output is not a terminal."""
        if not sys.stdout.isatty():
            return
        jobs = self.jobs()
        states = Counter(job.state for job in jobs)
        done = states["SUCCEEDED"]
        bar = "█" * (30 * done // len(jobs)) if jobs else ""
        told = ", ".join(f"{states[state]} {state.lower()}" for state in ("RUNNING", "DISPATCHED", "SCHEDULED"))
        self._clear()
        self._line = f"{time.monotonic() - self._began:6.2f} s  {bar:░<30} {done}/{len(jobs)} done, {told}"
        print(self._line, end="", flush=True)

    def end(self) -> None:
        self._clear()
        for process in reversed(self.processes):
            process.end()
        self.world.close()

    def _start(self, name: str, command: list[str]) -> Process:
        environment = {"FLEET_WORLD": str(self.folder / "world.db")}
        process = Process(name, command, self.folder / f"{name}.log", environment)
        self.processes.append(process)
        return process

    def _wait_url(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while self.plane.runs and time.monotonic() < deadline:
            if found := re.search(r"http://\S+", self.plane.log.read_text()):
                return found[0]
            time.sleep(0.02)
        raise OffScript(f"the plane did not come up\n{self._logs()}")

    def _is_new(self, name: str, before: set[str]) -> bool:
        return any(worker.name == name and worker.id not in before for worker in self.client.workers().items)

    def _logs(self) -> str:
        left = [f"{job.state} {job.id} {job.topic} on {job.worker}" for job in self.jobs() if job.state not in ENDED]
        logs = {process.log: 0 for process in self.processes}
        return "\n".join(left[:20]) + "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def _clear(self) -> None:
        if self._line:
            print("\r" + " " * len(self._line) + "\r", end="", flush=True)
            self._line = ""


def make_world(path: Path) -> apsw.Connection:
    world = apsw.Connection(str(path))
    world.set_busy_timeout(5000)
    world.execute("PRAGMA journal_mode = WAL")
    world.execute("CREATE TABLE effect (job TEXT NOT NULL, what TEXT NOT NULL, key TEXT NOT NULL)")
    return world


@contextmanager
def on_stage() -> Iterator[Stage]:
    """A plane of its own, in a folder of its own; whatever happens, nothing is left behind."""
    with TemporaryDirectory(prefix="holdfast-fleet-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder))
        try:
            stage.open()
            yield stage
        finally:
            stage.end()
