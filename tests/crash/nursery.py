"""Starts planes quickly: has everything imported, and forks one for each line it is told.

A line on standard input is the JSON list of a `holdfast` command's arguments; the answer is the
process's id. What runs is the command itself; only the second that Python needs to import it is saved,
a hundred times over.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys

import uvloop  # noqa: F401  (as the next ones: what `holdfast up` imports when it is called)

import holdfast.app
import holdfast.stores.sqlite.inspect
import holdfast.stores.sqlite.store  # noqa: F401
from holdfast.cli import main


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are reaped at once
    gc.freeze()  # else each of them looks for garbage in all that was imported, and so has a copy of it made
    for line in sys.stdin:
        sys.argv[1:] = json.loads(line)
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.stdin.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            main()
            os._exit(1)  # `main` ends by an exit of its own
        print(process, flush=True)


if __name__ == "__main__":
    serve()
