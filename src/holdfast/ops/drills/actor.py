"""A process of a drill: `python -m holdfast.ops.drills.actor PARENT MODULE` runs the module, and ends with its parent.

The module's arguments come as the first line of standard input: everybody on the machine can read those of a command line,
and there is a password in the URL of a store.
"""

from __future__ import annotations

import json
import runpy
import sys

from holdfast.worker.child import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    sys.argv = [sys.argv[2], *json.loads(sys.stdin.readline())]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
