"""The processes of a drill: started, stopped, continued, killed; the whole tree of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

END_S = 10.0


class Process:
    """A process in a session of its own: Ctrl-C reaches the drill alone, which then ends it."""

    def __init__(self, name: str, module: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self._answers = log.with_suffix(".answers")  # apart, lest a line of the log come between the words of one
        self._log = log
        with self._answers.open("ab") as answers, log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter, our own module)
                [sys.executable, "-m", "holdfast.ops.drills.actor", str(os.getpid()), module],
                stdin=subprocess.PIPE,
                stdout=answers,
                stderr=errors,
                start_new_session=True,
            )
        self.say(json.dumps(arguments))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        """Stop all of it, as a machine that is suspended: its children, too."""
        for pid in (self.pid, *descendants(self.pid)):
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in (self.pid, *descendants(self.pid)):
            _send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, of its children as well: as if the machine were gone. Complete on return."""
        family = descendants(self.pid)
        self._process.kill()
        for pid in family:
            _send(pid, signal.SIGKILL)
        self._process.wait(END_S)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def answers(self) -> str:
        """What it wrote to standard output, so far: the last line may lack its end."""
        return self._answers.read_text(errors="replace")

    def said(self) -> str:
        """What it answered, and what it logged."""
        return self.answers() + self._log.read_text(errors="replace")


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Children and theirs. Empty where the system does not tell."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            shown = stat.read_text(encoding="utf-8", errors="replace")  # processes name themselves
            yield int(stat.parent.name), int(shown.rpartition(")")[2].split()[1])
