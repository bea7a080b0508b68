"""What a plane or a worker prints of its log: a line for people, or an object for machines, per event."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

import click

from holdfast.cli.output import printable, printable_lines

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event", "taskName"}
"""What every record has; the rest is what somebody said about an event."""

LIBRARIES = ("asyncio", "httpcore2", "httpx2", "uvicorn")
"""What they say about each request and each event of their loops is not about jobs, and names URLs that are secrets."""


class JsonLines(logging.Formatter):
    """One JSON object per line: `at`, `level`, `logger`, `event`, then the values of the event: `job_id`, `fence`,
    `trace` and so on. What no event of ours was said with has its text in `message`, and what failed a `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **({"message": record.getMessage()} if event is None else {"event": event}),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """For people, on a terminal: an error may have been worded by whoever submitted the job.

    What is said about an event is one line, whatever is in it: else a reason could go on with the line of another event. A
    traceback is below it.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the library's name)
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def log_to_stderr(*, verbose: bool, log_format: str) -> None:
    shown = logging.StreamHandler()
    shown.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, handlers=[shown])
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def with_log(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--verbose`, which is explained by `words`, and `--log-format`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        chosen = click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", envvar="HOLDFAST_LOG_FORMAT",
            show_envvar=True, help="Log lines for people, or for machines.",
        )  # fmt: skip
        return chosen(click.option("-v", "--verbose", is_flag=True, help=words)(command))

    return decorated
