"""The standard streams of a child: a handler that closes them does not take them from the next one.

The next file or connection that is opened would be given the free number, and what somebody prints would go there.
"""

from __future__ import annotations

import fcntl
import os
import sys

_NAMES = ("stdin", "stdout", "stderr")
_ABOVE = 64
"""Copies are kept out of the way of whoever closes all the low numbers."""


class Streams:
    def __init__(self) -> None:
        """As they are now; one that is closed already is nothing."""
        self._kept = [_copy(number) for number in range(len(_NAMES))]

    def restore(self) -> None:
        """What is closed is as it was. What is something else by now stays: it may be meant so, or be somebody's connection."""
        for number, (name, kept) in enumerate(zip(_NAMES, self._kept, strict=True)):
            if not _is_open(number) and _is_open(kept):
                os.dup2(kept, number)
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False):  # what it was redirected to need not have this word
                mode = "r" if number == 0 else "w"
                # Read and written as Python itself does; errors go out at once, whatever comes next.
                buffering = 1 if name == "stderr" or os.isatty(number) else -1
                setattr(sys, name, open(number, mode, buffering=buffering, closefd=False))  # noqa: SIM115  (for good)


def _copy(number: int) -> int:
    if _is_open(number):
        return _duplicate(number)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _duplicate(nothing)
    finally:
        os.close(nothing)


def _duplicate(number: int) -> int:
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    except OSError:  # this process may not have that many
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, len(_NAMES))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
