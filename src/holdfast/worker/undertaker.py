"""The undertaker: a process that outlives its supervisor for a moment, and ends what that one's children have started.

    python -I -S undertaker.py

The kernel ends the children of a supervisor that is killed, but not the tools that their handlers have called: those
would go on with a job that its next worker has begun by then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

READ = 4096


class Undertaker:
    """Is told of every process group that must not outlive this process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """From now on. Raises `OSError` if there is nobody to do so."""
        self._groups.add(group)
        if not self._say(f"+{group}\n"):
            self.close()  # it was killed, or hears nothing: another one is told of all
            try:
                self._start()
            except OSError:
                self._groups.discard(group)  # nobody will say when its number becomes another's
                raise

    def forget(self, group: int) -> None:
        """It is gone, and its number may become another's."""
        self._groups.discard(group)
        self._say(f"-{group}\n")

    def close(self) -> None:
        """Nothing is left to be done by it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        # A group of its own: what ends the supervisor's must not end it.
        self._process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, process_group=0)  # noqa: S603  (our own)
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"+{group}\n" for group in self._groups).encode())
        os.set_blocking(self._process.stdin.fileno(), False)

    def _say(self, line: str) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            return self._process.stdin.write(line.encode()) == len(line)
        except BrokenPipeError:
            return False


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the supervisor, who may take its time
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    while piece := os.read(sys.stdin.fileno(), READ):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            change = groups.add if line.startswith(b"+") else groups.discard
            change(int(line[1:]))
    # The supervisor is gone, however that came.
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
