"""How a handler's process ends, or does not even start; and what whoever runs the worker can do about that."""

from __future__ import annotations

import errno
import signal

from holdfast.worker.errors import BrokenWorker

_THEN = {
    errno.EAGAIN: "let it have more processes (`ulimit -u`, `pids.max` of its container), or fewer slots",
    errno.ENOMEM: "let it have more memory, or fewer slots",
    errno.EMFILE: "let it have more open files (`ulimit -n`), or fewer slots",
    errno.ENFILE: "let the machine have more open files (`fs.file-max`)",
    errno.ENOENT: "its Python is not where it was: restart it from an environment that is there",
    errno.EACCES: "its Python may not be executed any more: put that right, or restart it from another environment",
}
_LOOK = "look at what it and its children have written, and at the memory of the machine; else restart it"


class ChildDied(Exception):
    """It is dead and reaped."""

    def __init__(self, code: int) -> None:
        self.ended = f"was killed by {_signal(-code)}" if code < 0 else f"exited with {code}"
        super().__init__(f"the process that ran the handler {self.ended}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time ones have no name
        return f"signal {number}"


class NotStarted(Exception):
    """There is no process that has taken up the job: its handler has not begun.

    `why` may be told to anybody, `then` is the next step; what a user's module said stands in the log alone.
    """

    def __init__(self, why: str, then: str = _LOOK) -> None:
        super().__init__(f"{why}; {then}")
        self.why = why
        self.then = then


def not_started(error: Exception) -> NotStarted:
    """By what starting one has raised."""
    match error:
        case NotStarted():
            return error
        case BrokenWorker():
            return NotStarted(
                "its module cannot be loaded any more", "put the module right; its log says what is wrong"
            )
        case TimeoutError():
            return NotStarted(
                "its module takes too long to load in a new process", "see what it does when it is imported"
            )
        case OSError(errno=int(number)):
            words = f"{errno.errorcode.get(number, number)}, {error.strerror}"
            return NotStarted(f"no process can be started for a handler ({words})", _THEN.get(number, _LOOK))
        case ChildDied():
            return NotStarted(f"a process that was started for handlers {error.ended} before it took up a job")
        case _:
            return NotStarted(f"no process can be started for a handler ({type(error).__name__} in the worker itself)")
