"""`holdfast worker`: run one, see them all, drain one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Connection, api_key_given, check_url, choose_profile, with_plane
from holdfast.cli.logs import log_to_stderr, with_log
from holdfast.cli.output import Column, moment, print_row, printable, text
from holdfast.cli.refusals import Away, Failed, Misused
from holdfast.cli.repeat import show_page, with_watch

if TYPE_CHECKING:
    from holdfast.api import Workers
    from holdfast.worker.supervisor import Supervisor


AS_PROCESS_1 = (
    "warning: this worker is process 1 of its container, and buries nobody: what its handlers leave behind stays there as zombies. "
    "Start it by way of tini, or with `docker run --init`"
)

_LOAD: Column = ("load", lambda row: f"{row['in_hand']}/{row['slots']}")
_TOPICS: Column = ("topics", lambda row: printable(" ".join(row["topics"])))
_LINE = [text("id"), text("pool"), text("condition"), _LOAD, moment("last_seen"), _TOPICS]


class _RunByDefault(click.Group):
    """`holdfast worker mail_jobs:worker` is short for `holdfast worker run mail_jobs:worker`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        is_target = ":" in first or first.endswith(".py")
        is_option = first.startswith("-") and first not in ctx.help_option_names
        return super().parse_args(ctx, ["run", *args] if is_target or is_option else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = f"To run the worker of a module: `holdfast worker {args[0]}:worker`"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from error


@click.group(cls=_RunByDefault, subcommand_metavar="MODULE:WORKER | COMMAND [ARGS]...")
def worker() -> None:
    """Run a worker: `holdfast worker MODULE:WORKER`. Or see all of them, and drain one."""


@worker.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option("--url", envvar="HOLDFAST_URL", show_envvar=True, help="The plane.  [default: what the worker says]")
@click.option("--profile", envvar="HOLDFAST_PROFILE", metavar="NAME", show_envvar=True, help="Take its URL from here.")
@click.option("--name", help="The same name after a restart: its leases end at once.  [default: what the worker says]")
@click.option("--pool", help="Which topics' jobs it gets.  [default: what the worker says]")
@click.option("--slots", type=click.IntRange(1, 10_000), help="Jobs at once.  [default: what the worker says]")
@click.option("--health", metavar="HOST:PORT", help="Answer /livez and /readyz here.  [default: what the worker says]")
@with_log("Log every step of every attempt.")
def run(
    target: str, *, url: str | None, profile: str | None, name: str | None, pool: str | None, slots: int | None,
    health: str | None, verbose: bool, log_format: str,
) -> None:  # fmt: skip
    """Work on the topics that MODULE:WORKER (or FILE.py:WORKER) declares, until SIGTERM or Ctrl-C.

    Then it takes nothing more, finishes what it can, and hands the rest back at no cost to the
    jobs. Told twice, it hands back at once.
    """
    from holdfast.worker import BrokenWorker, serve  # noqa: PLC0415
    from holdfast.worker.link import Refused  # noqa: PLC0415

    log_to_stderr(verbose=verbose, log_format=log_format)
    if os.getpid() == 1:
        click.echo(AS_PROCESS_1, err=True)
    if url is None and profile is not None:
        url = choose_profile(profile)[1].get("url")
    if url is not None:
        check_url(url, "--url, HOLDFAST_URL or the profile")
    try:
        chosen = {"url": url, "name": name, "pool": pool, "slots": slots, "health": health}
        serve(target, on_ready=_tell_what_it_takes, api_key=api_key_given() or None, **chosen)
    except (BrokenWorker, ImportError, ValueError) as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            raise Failed(str(error)) from error
        raise Misused(str(error)) from error
    except Refused as error:
        said = f"the plane refuses this worker: {error}"
        if error.status == 422:  # it was heard, and its name, pool or labels will not do
            raise Misused(said) from error
        raise Away(f"{said}. Check HOLDFAST_API_KEY and --url") from error


def _tell_what_it_takes(supervisor: Supervisor) -> None:
    taken = printable(" ".join(supervisor.topics))
    click.echo(f"worker {supervisor.id} takes jobs from {supervisor.url}: {taken}", err=True)


@worker.command("list")
@with_watch
@with_plane
def list_workers(connection: Connection, *, watch: bool) -> None:
    """The workers that the plane knows, with what they have in hand."""
    show_page(
        connection,
        lambda client: client.workers(),
        _LINE,
        empty="no worker is known; start one with `holdfast worker MODULE:WORKER`",
        # Not while watching: the age is another one each time.
        remark=lambda known: "" if watch or not known.items else _freshness(known),
        watch=watch,
    )


def _freshness(known: Workers) -> str:
    """How old the list is that another replica of the plane would start with."""
    if known.snapshot_age_s is None:
        return "the list is not in the store yet"
    return f"in the store as of {known.snapshot_age_s:.1f} s ago, written by {known.snapshot_writer or 'nobody now'}"


@worker.command()
@click.argument("worker_id", metavar="WORKER")
@with_plane
def drain(connection: Connection, *, worker_id: str) -> None:
    """Give WORKER (its id) nothing more. What it has in hand it finishes."""
    connection.ask(lambda client: client.drain(worker_id), hint="`holdfast worker list` shows the ids")
    print_row({"id": worker_id, "condition": "draining"}, [text("id"), text("condition")], connection.output)
