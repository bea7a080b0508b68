"""`holdfast runbook`: what to do about an alert, beside what the plane says right now."""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import print_rows, printable, text
from holdfast.cli.refusals import Absent, Misused, Refusal

if TYPE_CHECKING:
    from holdfast.ops.runbooks import Runbook

READ_ONLY = frozenset(
    {
        "approval list", "approval show", "audit list", "config list", "dead-letter list", "dead-letter show", "doctor",
        "effect list", "effect show", "freeze list", "job events", "job get", "job list", "lock classes", "lock history",
        "lock list", "lock show", "lock top", "policy history", "policy show", "run get", "run list", "run steps",
        "run timeline", "schedule list", "webhook list", "webhook log", "why approval", "why job", "why lock", "why run",
        "why worker", "worker list",
    }
)  # fmt: skip
"""What a runbook may run by itself. Everything else a person types."""


@click.command()
@click.argument("alert", required=False)
@click.option("--with", "given", metavar="NAME=VALUE", multiple=True, help="What stands for a word in capitals: JOB=…")
@with_plane
def runbook(connection: Connection, alert: str | None, *, given: tuple[str, ...]) -> None:
    """Walk through the runbook of ALERT: its evidence is asked of the plane, its commands are yours to type.

    Without ALERT: all of them.
    """
    from holdfast.ops.runbooks import find_runbook, list_runbooks  # noqa: PLC0415

    if alert is None:
        rows = [{"name": book.name, "alert": book.alert or "-", "title": book.title} for book in list_runbooks()]
        print_rows(rows, [text("name"), text("alert"), text("title")], connection.output)
        return
    book = find_runbook(alert)
    if book is None:
        raise Absent(f"no runbook for {alert!r}. `holdfast runbook` lists them")
    _walk(book, connection, _values(given))


def _values(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given]
    if any(not sign or not name.isupper() for name, sign, _ in pairs):
        raise Misused("--with wants NAME=VALUE, with the name in capitals as the page has it")
    return {name: value for name, _, value in pairs}


def _walk(book: Runbook, connection: Connection, values: dict[str, str]) -> None:
    from holdfast.ops.runbooks import Section, filled  # noqa: PLC0415

    click.echo(f"{book.title}\n\n{book.summary}")
    for section in Section:
        click.echo(f"\n-- {section.value.upper()} --\n")
        for line in filled(book.sections[section], values).splitlines():
            if line.startswith("```"):
                continue
            click.echo(_case(line) if line.startswith("|") else line)
            if section is Section.EVIDENCE and line.startswith("$ "):
                _show(line[2:], connection)


def _case(row: str) -> str:
    """A row of a table, one cell under the other: a terminal is too narrow for sentences side by side."""
    first, *others = (cell.strip() for cell in row.strip("|").split("|"))
    if not first.strip("-"):
        return ""
    return "\n".join([first, *(f"    {cell}" for cell in others)])


def _show(line: str, connection: Connection) -> None:
    """What the plane answers, indented under the command. What would change something is not run."""
    for said in evidence(line, connection).splitlines():
        click.echo(f"    {printable(said)}")


def evidence(line: str, connection: Connection) -> str:
    from holdfast.ops.runbooks import places  # noqa: PLC0415

    if open_places := places(line):
        return f"(say --with {open_places[0]}=…, and it is asked)"
    words = shlex.split(line)
    if words[0] == "curl":
        return _metrics(words[-1], connection)
    command, path = _command(words[1:])
    if " ".join(path) not in READ_ONLY:
        return "(not run: it might change something)"
    arguments = words[1:]
    names = {option.name for option in command.params}
    if {"url", "tenant"} <= names:
        arguments += ["--url", connection.url.value, "--tenant", connection.tenant.value]
    return _run(arguments)


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and which of them do."""
    command: click.Command = click.get_current_context().find_root().command
    path: list[str] = []
    for word in words:
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        command = command.commands[word]
        path.append(word)
    return command, path


def _run(arguments: list[str]) -> str:
    root = click.get_current_context().find_root().command
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            root.main(arguments, standalone_mode=False)
        except click.ClickException as refused:
            out.write(f"{refused.format_message()}\n")
        except click.exceptions.Exit as left:
            out.write("" if left.exit_code == 0 else f"(exit code {left.exit_code})\n")
    return out.getvalue() or "(nothing)"


def _metrics(wanted: str, connection: Connection) -> str:
    """The lines of `/metrics` that begin with what was wanted."""
    try:
        page = connection.ask(lambda client: client.metrics())
    except Refusal as refused:
        return f"(no metrics: {refused.format_message()})"
    lines = [line for line in page.splitlines() if line.startswith(wanted)]
    return "\n".join(lines) or "(nothing was counted yet)"
