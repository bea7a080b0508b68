"""The machinery behind the story: worker processes, what they say, and when."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 20.0

Event = dict[str, Any]

_SENTENCES = {
    "read": "reads balance {balance}",
    "wrote": "writes balance {balance}",
    "refused": "IS REFUSED: the account has already seen fence {current}",
    "ended": "has brought all its deposits",
}


class OffScript(Exception):
    """Something else happened than the story says."""


class Worker:
    """A worker process. What it says goes to `events`; that it ended or failed does, too."""

    def __init__(self, name: str, arguments: list[str], events: queue.Queue[tuple[Worker, Event]]) -> None:
        self.name = name
        # A session of its own: Ctrl-C reaches the story alone, which then ends its workers.
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=[events], daemon=True)
        self._reader.start()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """Kill it if it still runs (a stopped process dies of SIGKILL too), and reap it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self.begin()

    def _read(self, events: queue.Queue[tuple[Worker, Event]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                events.put((self, json.loads(line)))
        events.put((self, {"event": "failed" if self._process.wait() else "ended"}))


class Stage:
    """The workers, and the narration of everything they do."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.workers: list[Worker] = []
        self._events: queue.Queue[tuple[Worker, Event]] = queue.Queue()
        self._began = time.monotonic()

    def begin(self, names: str, arguments: list[str]) -> None:
        """Start a worker for each name, and let them begin at the same time."""
        for name in names:
            self.workers.append(Worker(name, arguments, self._events))
            self.wait(self.workers[-1], "ready")
        self._began = time.monotonic()
        for worker in self.workers:
            worker.begin()

    def wait(self, worker: Worker, *wanted: str) -> Event:
        """Let things happen until `worker` does what is wanted. Raises `OffScript` if it never does."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            heard = self._next(deadline - time.monotonic())
            if heard is None:
                raise OffScript(f"{worker.name} did not say {' or '.join(wanted)!r} within {PATIENCE_S} s")
            speaker, said = heard
            if speaker is worker and said["event"] in wanted:
                return said
            if speaker is worker and said["event"] in ("ended", "failed"):
                raise OffScript(f"{worker.name} {said['event']} before it said {' or '.join(wanted)!r}")

    def is_silent(self, worker: Worker, for_s: float) -> bool:
        deadline = time.monotonic() + for_s
        while (heard := self._next(deadline - time.monotonic())) is not None:
            if heard[0] is worker:
                return False
        return True

    def narrate(self, who: str, what: str, fence: int | str = "") -> None:
        print(f"{self._elapsed():6.2f} s  {who:<6} {fence:<17} {what}", flush=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _next(self, within_s: float) -> tuple[Worker, Event] | None:
        try:
            worker, said = self._events.get(timeout=max(0.0, within_s))
        except queue.Empty:
            return None
        said["at"] = self._elapsed()
        self.said.append(said)
        if said["event"] in _SENTENCES:
            self.narrate(worker.name, _SENTENCES[said["event"]].format(**said), said.get("fence", ""))
        return worker, said


@contextmanager
def on_stage(names: str, arguments: list[str]) -> Iterator[Stage]:
    """Run workers of these names; whatever happens, none is left behind."""
    stage = Stage()
    try:
        stage.begin(names, arguments)
        yield stage
    finally:
        for worker in stage.workers:
            worker.end()
