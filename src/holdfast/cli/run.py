"""`holdfast run`: start workflows, follow them, stop them, run them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.job import Json, print_event, with_labels, with_wait
from holdfast.cli.output import Column, json_value, members, moment, print_row, print_rows, printable, text
from holdfast.cli.refusals import Failed, TookTooLong
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.api.runs import RunView
    from holdfast.client import Client

_STATES = ("queued", "running", "paused", "cancelling", "compensating", "succeeded", "failed", "cancelled", "timeout")
_LINE = [text("id"), text("workflow"), text("revision"), text("state"), moment("since")]
_STEP = [text("name"), text("kind"), text("state"), text("attempt"), text("ref"), json_value("error")]
_PLANNED = [text("id"), text("kind"), text("prospect"), json_value("case"), json_value("items"), text("why")]
_EVENT = [moment("at"), text("kind"), text("job_id"), text("state"), text("attempt"), members("detail")]
_SEE = "`holdfast run list` shows what there is"


@click.group()
def run() -> None:
    """Start runs of workflows, follow them, stop them, run them again."""


@run.command()
@click.argument("workflow")
@click.option("--input", "given", type=Json(), metavar="JSON", help="The document itself, @FILE, or - for stdin.")
@click.option("--revision", type=click.IntRange(min=1), help="Of the workflow.  [default: the newest]")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same order again gives the same run.")
@click.option("--session", default="", metavar="TEXT", help="It begins when the runs of the same session have ended.")
@click.option("--session-policy", type=click.Choice(["enqueue", "reject", "interrupt", "rollback"]),
              default="enqueue", help="What to do about its runs that have not ended.  [default: enqueue]")  # fmt: skip
@with_labels("Something to find it by.")
@click.option("--dry-run", is_flag=True, help="Start nothing; check the input, and show what would happen.")
@with_wait("run")
@with_plane
def start(
    connection: Connection,
    *,
    workflow: str,
    given: Any,  # noqa: ANN401
    key: str | None,
    dry_run: bool,
    wait: bool,
    wait_timeout: float | None,
    **order: Any,  # noqa: ANN401
) -> None:
    """Start a run of WORKFLOW. It is durable when this answers."""
    hint = "`holdfast workflow list` shows which there are"
    if dry_run:
        from msgspec import to_builtins  # noqa: PLC0415

        planned = connection.ask(lambda client: client.plan_run(workflow, given, **order), hint=hint)
        if connection.output == "table":
            print_rows([to_builtins(step) for step in planned.steps], _PLANNED, connection.output)
        else:
            print_row(to_builtins(planned), [], connection.output)
        return
    started = connection.ask(lambda client: client.start_run(workflow, given, idempotency_key=key, **order), hint=hint)
    if wait or wait_timeout is not None:
        click.echo(f"started {started.id}", err=True)
        _show_ended(connection, started.id, wait_timeout)
    else:
        _show(started, connection.output)


@run.command()
@click.argument("run_id", metavar="RUN")
@with_wait("run")
@with_plane
def get(connection: Connection, *, run_id: str, wait: bool, wait_timeout: float | None) -> None:
    """Where RUN stands, what it was given, and what came of it."""
    if wait or wait_timeout is not None:
        _show_ended(connection, run_id, wait_timeout)
    else:
        _show(connection.ask(lambda client: client.get_run(run_id), hint=_SEE), connection.output)


@run.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option("--workflow", help="Only runs of this workflow.")
@with_pages
@with_watch
@with_plane
def list_runs(connection: Connection, *, watch: bool, **wanted: Any) -> None:  # noqa: ANN401
    """Runs, newest first."""
    empty = none_of("run", wanted["state"], wanted["workflow"], cursor=wanted["cursor"])
    show_page(connection, lambda client: client.list_runs(**wanted), _LINE, empty=empty, watch=watch)


@run.command()
@click.argument("run_id", metavar="RUN")
@with_plane
def watch(connection: Connection, *, run_id: str) -> None:
    """What happens to RUN and its jobs, from its beginning to its end.

    The exit code is 0 if it succeeded and 1 if it ended otherwise.
    """
    with connection.plane(hint=_SEE) as client:
        for event in client.watch_run(run_id):
            print_event(event, connection.output, whose=True)
        ended = client.get_run(run_id)
    _check_success(ended)


@run.command()
@click.argument("run_id", metavar="RUN")
@with_pages
@with_plane
def timeline(connection: Connection, *, run_id: str, **paging: Unpack[Paging]) -> None:
    """All that happened to RUN and its jobs, oldest first: attempts, leases, fences, approvals, effects."""
    show_page(connection, lambda client: client.run_timeline(run_id, **paging), _EVENT, empty="nothing more", hint=_SEE)


@run.command()
@click.argument("run_id", metavar="RUN")
@with_pages
@with_watch
@with_plane
def steps(connection: Connection, *, run_id: str, watch: bool, **paging: Unpack[Paging]) -> None:
    """The steps of RUN that have been reached, by name."""
    show_page(
        connection,
        lambda client: client.run_steps(run_id, **paging),
        _STEP,
        empty="none was reached yet",
        watch=watch,
        hint=_SEE,
    )


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the run.")
@click.option("--no-compensation", is_flag=True, help="Leave done what was done.")
@with_plane
def cancel(connection: Connection, *, run_id: str, reason: str, no_compensation: bool) -> None:
    """Stop RUN: nothing more begins, what runs is asked to stop, and what was done is undone."""
    _show(
        connection.ask(
            lambda client: client.cancel_run(run_id, reason=reason, compensate=not no_compensation),
            hint=_hint(run_id),
            absent=_SEE,
        ),
        connection.output,
    )


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the run.")
@with_plane
def pause(connection: Connection, *, run_id: str, reason: str) -> None:
    """Begin nothing more of RUN; what is under way goes on, and its results are kept."""
    paused = connection.ask(lambda client: client.pause_run(run_id, reason=reason), hint=_hint(run_id), absent=_SEE)
    _show(paused, connection.output)


@run.command()
@click.argument("run_id", metavar="RUN")
@with_plane
def resume(connection: Connection, *, run_id: str) -> None:
    """Let a paused RUN go on."""
    _show(connection.ask(lambda client: client.resume_run(run_id), hint=_hint(run_id), absent=_SEE), connection.output)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--from", "step", required=True, metavar="STEP", help="The first step that is run again.")
@with_plane
def rerun(connection: Connection, *, run_id: str, step: str) -> None:
    """Run RUN, which has ended, again from STEP on. What came before it stays as it was."""
    _show(connection.ask(lambda client: client.rerun(run_id, step), hint=_hint(run_id), absent=_SEE), connection.output)


def _hint(run_id: str) -> str:
    return f"`holdfast run get {run_id}` shows where it stands"


def _show_ended(connection: Connection, run_id: str, seconds: float | None) -> None:
    try:
        ended = connection.ask(lambda client: _wait(client, run_id, seconds), hint=_SEE)
    except TimeoutError as error:
        raise TookTooLong(f"{error}. It goes on: `holdfast run get {run_id} --wait`") from error
    except KeyboardInterrupt:
        click.echo(f"\nrun {run_id} goes on: `holdfast run get {run_id} --wait`", err=True)
        raise
    _show(ended, connection.output)
    _check_success(ended)


def _wait(client: Client, run_id: str, seconds: float | None) -> RunView:
    client.get_run(run_id)  # whoever was answered outlives a restart of the plane
    return client.wait_run(run_id, timeout=seconds)


def _check_success(ended: RunView) -> None:
    if ended.state != "succeeded":
        why = f" ({printable(str(ended.error['code']))})" if ended.error and "code" in ended.error else ""
        raise Failed(f"run {ended.id} is {ended.state}{why}. `holdfast run timeline {ended.id}` tells how")


def _show(found: RunView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    print_row(row, list(_columns(row)), output)


def _columns(row: dict[str, Any]) -> Iterator[Column]:
    """What there is to say about a run."""
    yield from _LINE
    for name in ("actor", "session", "parent_run", "generation"):
        if row[name]:
            yield text(name)
    if row["deadline"] is not None:
        yield moment("deadline")
    for name in ("held", "labels", "input", "output", "error"):
        if row[name] not in (None, {}):
            yield json_value(name, width=200)
    yield from (text("version"), text("fence"))
