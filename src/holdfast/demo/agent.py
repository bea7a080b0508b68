"""One worker of the demo, as a process: `python -m holdfast.demo.agent URL NAME PARENT`. Ends with its parent."""

from __future__ import annotations

import logging
import sys

from holdfast.worker import serve
from holdfast.worker.child import die_with


def main() -> None:
    _, url, name, parent = sys.argv
    die_with(int(parent))
    # Its tasks fail on purpose, and the terminal still shows what to try.
    logging.getLogger("holdfast.worker").addFilter(lambda record: getattr(record, "event", "") != "attempt.failed")
    serve("holdfast.demo.tasks:worker", url=url, name=name)


if __name__ == "__main__":
    main()
