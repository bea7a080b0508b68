"""`holdfast schedule`: submit something again and again, by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.job import Json, with_labels
from holdfast.cli.output import Column, json_value, moment, print_row, text
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import Seconds

if TYPE_CHECKING:
    from holdfast.api.schedules import ScheduleView

_WHEN: Column = ("when", lambda row: f"{row['cron']} {row['zone']}" if row["cron"] else f"every {row['every_s']:g} s")
_WHAT: Column = (
    "what",
    lambda row: f"job {row['job']['topic']}" if row["job"] else f"run {row['run']['workflow']}",
)
_STATE: Column = ("state", lambda row: "paused" if row["paused"] else "active")
_LINE = [text("name"), _WHEN, _WHAT, _STATE, moment("next_at"), moment("last_at"), text("last")]
_WHOLE = [*_LINE, text("missed"), text("overlap"), text("last_error"), json_value("job", width=200),
          json_value("run", width=200)]  # fmt: skip
_SEE = "`holdfast schedule list` shows what there is"


@click.group()
def schedule() -> None:
    """Submit jobs and start runs by the clock."""


@schedule.command()
@click.argument("name")
@click.option("--cron", default="", metavar="FIELDS", help="Minute, hour, day of the month, month, day of the week.")
@click.option("--zone", default="UTC", show_default=True, help="Whose time that is, such as Europe/Berlin.")
@click.option("--every", "every_s", type=Seconds(min=1), metavar="SECONDS", help="Instead of --cron.")
@click.option("--job", "topic", metavar="TOPIC", help="Submit a job to this topic.")
@click.option("--run", "workflow", metavar="WORKFLOW", help="Start a run of this workflow.")
@click.option("--payload", "given", type=Json(), metavar="JSON", help="Of the job, or the input of the run.")
@with_labels("Something to find them by.")
@click.option("--session", default="", metavar="TEXT", help="Run them one after the other with others of this session.")
@click.option("--missed", type=click.Choice(["skip", "one", "all"]), default="one", show_default=True,
              help="What to make up for when nobody was there.")  # fmt: skip
@click.option("--overlap", type=click.Choice(["allow", "skip"]), default="allow", show_default=True,
              help="Whether to go on while the last one has not ended.")  # fmt: skip
@click.option("--paused", is_flag=True, help="Do not begin before it is resumed.")
@with_plane
def add(
    connection: Connection,
    *,
    topic: str | None,
    workflow: str | None,
    given: Any,  # noqa: ANN401
    labels: dict[str, str],
    session: str,
    every_s: float | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Submit the same job, or start the same run, by --cron or --every so many seconds."""
    from holdfast.api.schedules import NewSchedule, ScheduledJob, ScheduledRun  # noqa: PLC0415

    if (topic is None) == (workflow is None):
        raise click.UsageError("give one of --job TOPIC and --run WORKFLOW")
    if bool(options["cron"]) == (every_s is not None):
        raise click.UsageError("give one of --cron FIELDS and --every SECONDS")
    job = None if topic is None else ScheduledJob(topic=topic, payload=given, labels=labels, session=session)
    run = None if workflow is None else ScheduledRun(workflow=workflow, input=given, labels=labels, session=session)
    new = NewSchedule(job=job, run=run, every_s=every_s or 0.0, **options)
    _show(connection, connection.ask(lambda client: client.add_schedule(new)))


@schedule.command("list")
@with_pages
@with_watch
@with_plane
def list_schedules(connection: Connection, *, watch: bool, **paging: Unpack[Paging]) -> None:
    """Schedules by name."""
    show_page(
        connection,
        lambda client: client.schedules(**paging),
        _LINE,
        empty=none_of("schedule", cursor=paging["cursor"]),
        watch=watch,
    )


@schedule.command()
@click.argument("name")
@click.option("--next", "upcoming", type=click.IntRange(0, 100), default=5, show_default=True,
              help="How many of the next ticks to show.")  # fmt: skip
@with_plane
def show(connection: Connection, *, name: str, upcoming: int) -> None:
    """One schedule, and when it ticks next."""
    _show(connection, connection.ask(lambda client: client.schedule(name, upcoming=upcoming), hint=_SEE))


@schedule.command()
@click.argument("name")
@with_plane
def pause(connection: Connection, *, name: str) -> None:
    """Submit nothing until it is resumed."""
    _show(connection, connection.ask(lambda client: client.pause_schedule(name), hint=_SEE))


@schedule.command()
@click.argument("name")
@with_plane
def resume(connection: Connection, *, name: str) -> None:
    """Go on with the next tick from now. What fell into the pause is not made up for."""
    _show(connection, connection.ask(lambda client: client.resume_schedule(name), hint=_SEE))


@schedule.command()
@click.argument("name")
@with_plane
def remove(connection: Connection, *, name: str) -> None:
    """Remove a schedule. What it has submitted stays."""
    connection.ask(lambda client: client.remove_schedule(name), hint=_SEE)
    click.echo(f"removed {name}", err=True)


@schedule.command()
@click.argument("name")
@with_plane
def trigger(connection: Connection, *, name: str) -> None:
    """One tick now, also while it is paused."""
    fired = connection.ask(lambda client: client.trigger_schedule(name), hint=_SEE)
    _show(connection, fired)
    click.echo(f"it made {fired.last}", err=True)


def _show(connection: Connection, found: ScheduleView) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    print_row(row, _WHOLE, connection.output)
    if connection.output == "table":
        for at in row["upcoming"]:
            click.echo(moment("at")[1]({"at": at}))
