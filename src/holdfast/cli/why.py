"""`holdfast why`: why a job, run, lock, approval or worker is as it is, the cause first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import age, moment, print_row, print_rows, printable, text

if TYPE_CHECKING:
    from holdfast.api.why import FindingView, WhyView
    from holdfast.client import Client

_ATTEMPT = [
    text("fence"), text("worker"), moment("sent_at"), moment("began_at"), moment("ended_at"), text("ending"),
    text("reason"), text("refused"),
]  # fmt: skip


@click.group()
def why() -> None:
    """Find out why something does not move, moved twice, or was refused: the cause first, with evidence."""


def _ask(
    subject: str, metavar: str, question: Callable[[Client, str], WhyView], *, hint: str, about: str
) -> click.Command:
    @click.argument("thing", metavar=metavar)
    @with_plane
    def ask(connection: Connection, *, thing: str) -> None:
        found = connection.ask(lambda client: question(client, thing), hint=hint)
        _show(found, connection.output)

    return why.command(subject, help=about)(ask)


_ask(
    "job",
    "JOB",
    lambda client, thing: client.why_job(thing),
    hint="`holdfast job list` shows the ids",
    about="Why a job waits, runs, ended or began twice: causes, evidence, who can act, the next command, attempts.",
)
_ask(
    "run",
    "RUN",
    lambda client, thing: client.why_run(thing),
    hint="`holdfast run list` shows the ids",
    about="Why a run does not go on: which step, and why that one.",
)
_ask(
    "lock",
    "KEY",
    lambda client, thing: client.why_lock(thing),
    hint="`holdfast lock classes` shows what keys there may be",
    about="Why a lock is held: by whom, until when, whether its holder lives, and who waits.",
)
_ask(
    "approval",
    "APPROVAL",
    lambda client, thing: client.why_approval(thing),
    hint="`holdfast approval list` shows the ids",
    about="Why an approval is open, used, expired or of no use any more, and who can decide.",
)
_ask(
    "worker",
    "WORKER",
    lambda client, thing: client.why_worker(thing),
    hint="`holdfast worker list` shows the ids",
    about="Why a worker gets nothing, or takes nothing.",
)


def _show(found: WhyView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    if output != "table":
        print_row(to_builtins(found), [], output)
        return
    click.echo(f"{found.subject} {printable(found.id)}: {found.state}")
    for place, finding in enumerate(found.findings, start=1):
        _tell(place, finding, at=found.at)
    began = [attempt for attempt in found.attempts if attempt.began_at is not None]
    if len(began) > 1 or any(attempt.refused for attempt in found.attempts):
        click.echo("\nattempts")
        print_rows([to_builtins(attempt) for attempt in found.attempts], _ATTEMPT, output)


def _tell(place: int, finding: FindingView, *, at: float) -> None:
    click.echo(f"\n{place}. {finding.code} ({finding.weight}): {printable(finding.summary)}")
    if finding.since is not None:
        click.echo(f"   since     {age(at - finding.since)} ago")
    if finding.until is not None and finding.until > at:
        click.echo(f"   until     {age(finding.until - at)} from now")
    if finding.who:
        click.echo(f"   who       {printable(finding.who)}")
    if finding.evidence:
        told = ", ".join(f"{name}={_brief(name, value, at)}" for name, value in finding.evidence.items())
        click.echo(f"   evidence  {printable(told)}")
    for command in finding.next:
        click.echo(f"   next      {printable(command)}")


def _brief(name: str, value: Any, at: float) -> str:  # noqa: ANN401  (whatever JSON has)
    import json  # noqa: PLC0415

    if isinstance(value, float) and name.endswith(("_at", "_heard")):  # seconds since the epoch tell people nothing
        return f"{age(at - value)} ago" if value <= at else f"in {age(value - at)}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
