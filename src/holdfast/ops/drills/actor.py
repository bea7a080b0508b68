"""A process of a drill: `python -m holdfast.ops.drills.actor PARENT MODULE [ARGUMENT]…` runs the module, and ends with its parent."""

from __future__ import annotations

import runpy
import sys

from holdfast.worker.child import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
