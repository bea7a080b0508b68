"""`holdfast job`: submit work, follow it, stop it, send it round again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.document import read_stdin
from holdfast.cli.output import Column, json_text, json_value, members, moment, print_row, printable, text
from holdfast.cli.refusals import Failed, TookTooLong
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import Seconds
from holdfast.core.states import LIVE, TERMINAL, Risk, State

if TYPE_CHECKING:
    from holdfast.api import EventView, JobView
    from holdfast.client import Client

_ATTEMPTS: Column = ("attempts", lambda row: f"{row['attempts']}/{row['max_attempts']}")
_STATE: Column = ("state", lambda row: f"{row['state']} (frozen)" if row["frozen"] else row["state"])
_LINE = [text("id"), text("topic"), _STATE, _ATTEMPTS, text("worker"), moment("since")]
_EVENT = [moment("at"), text("kind"), text("state"), text("attempt"), members("detail")]
_STREAM_WIDTHS = {"at": 24, "job_id": 32, "kind": 20, "state": 10}
_SEE = "`holdfast job list` shows what there is"
_PATIENCE_S = 3.0
"""Who has waited for so long is told what for: a misspelt topic would be waited for until the end of days."""


@click.group()
def job() -> None:
    """Submit jobs, follow them, stop them, send them round again."""


class Json(click.ParamType[Any]):
    """A JSON document: as it stands, from a file (`@file`), or from stdin (`-`)."""

    name = "json"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        from msgspec import DecodeError  # noqa: PLC0415
        from msgspec.json import decode  # noqa: PLC0415  (stricter than the standard library: no NaN)

        try:
            return decode(self._read(value))
        except OSError as error:
            self.fail(f"{value[1:]}: {error.strerror}", param, ctx)
        except RecursionError:
            self.fail("the JSON is nested too deeply", param, ctx)
        except UnicodeError as error:  # of an argument Python has made something, whatever it was
            self.fail(f"not JSON, which is text in UTF-8: {error}", param, ctx)
        except DecodeError as error:
            self.fail(f"not JSON: {error}. A text needs its quotes: '\"like this\"'", param, ctx)

    @staticmethod
    def _read(value: str) -> str:
        if value == "-":
            return read_stdin()
        return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value


def to_labels(_: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    wrong = [label for label in given if not label.partition("=")[0] or "=" not in label]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param=param)
    return dict(label.split("=", 1) for label in given)


def with_labels(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "-l", "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=to_labels, help=f"{words} Repeatable."
    )


def with_wait(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    words = f"Stay until the {what} has ended; exit code 1 if it ended badly."

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = click.option("--wait", is_flag=True, help=words)(command)
        return click.option(
            "--wait-timeout",
            type=Seconds(min=0),
            metavar="SECONDS",
            help="As --wait, but no longer than this.",
        )(command)

    return add


@job.command()
@click.argument("topic")
@click.option("--payload", type=Json(), metavar="JSON", help="The document itself, @FILE, or - for stdin.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same submission again gives the same job.")
@with_labels("Something to find it by.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True, help="Higher goes first.")
@click.option(
    "--risk",
    type=click.Choice([risk.value for risk in Risk]),
    help="How bad a repetition would be.  [default: the topic's]",
)
@click.option("--max-attempts", type=click.IntRange(1, 1000), help="[default: the topic's]")
@click.option("--delay", type=Seconds(min=0), default=0.0, metavar="SECONDS", help="Do not start before.")
@click.option("--timeout", type=Seconds(min=0, min_open=True), metavar="SECONDS", help="Give up after.")
@click.option("--session", metavar="TEXT", help="Run it after the other jobs of this session.")
@click.option("--session-policy", type=click.Choice(["enqueue", "reject", "interrupt", "rollback"]),
              help="What to do about those that have not ended.  [default: enqueue]")  # fmt: skip
@click.option("--actor", envvar="HOLDFAST_ACTOR", metavar="NAME", show_envvar=True, help="Who asks for it.")
@with_wait("job")
@with_plane
def submit(
    connection: Connection,
    *,
    topic: str,
    payload: Any,  # noqa: ANN401
    key: str | None,
    delay: float,
    timeout: float | None,
    wait: bool,
    wait_timeout: float | None,
    **limits: Any,  # noqa: ANN401
) -> None:
    """Submit a job to TOPIC. It is durable when this answers."""
    given = {**limits, "delay_s": delay, "timeout_s": timeout}

    def ask(client: Client) -> JobView:
        return client.submit(
            topic, payload, idempotency_key=key, **{name: value for name, value in given.items() if value is not None}
        )

    submitted = connection.ask(ask)
    if wait or wait_timeout is not None:
        click.echo(f"submitted {submitted.id}", err=True)
        _show_ended(connection, submitted.id, wait_timeout)
    else:
        _show(submitted, connection.output)


@job.command()
@click.argument("job_id", metavar="JOB")
@with_wait("job")
@with_plane
def get(connection: Connection, *, job_id: str, wait: bool, wait_timeout: float | None) -> None:
    """Where JOB stands, what it was given, and what came of it."""
    if wait or wait_timeout is not None:
        _show_ended(connection, job_id, wait_timeout)
    else:
        found = connection.ask(lambda client: client.get(job_id), hint=_SEE)
        _show(found, connection.output)
        if found.state not in TERMINAL and found.state != State.RUNNING:
            click.echo(f"`holdfast why job {found.id}` says what it waits for", err=True)


@job.command("list")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State], case_sensitive=False),
    help="Only those in this state.",
)
@click.option("--topic", help="Only this topic; or a family, as mail.*")
@click.option("--worker", help="Only those that were given to this worker last.")
@with_labels("Only those with this label.")
@with_pages
@with_watch
@with_plane
def list_jobs(connection: Connection, *, watch: bool, **wanted: Any) -> None:  # noqa: ANN401
    """Jobs, newest first."""
    filters = [value for name, value in wanted.items() if name not in ("limit", "cursor")]
    empty = none_of("job", *filters, cursor=wanted["cursor"])
    show_page(connection, lambda client: client.list(**wanted), _LINE, empty=empty, watch=watch)


@job.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Only these, as job.failed or effect.*; repeatable."
)
@with_plane
def watch(connection: Connection, *, job_id: str | None, kinds: tuple[str, ...]) -> None:
    """Events as they happen: of JOB from its beginning to its end, else of every job from now on.

    With JOB, the exit code is 0 if it succeeded and 1 if it ended otherwise.
    """
    with connection.plane(hint=_SEE) as client:
        if job_id is None:
            for event in client.watch(kinds=kinds):
                print_event(event, connection.output, whose=True)
            return
        for event in client.watch(job_id, kinds=kinds):
            print_event(event, connection.output, whose=False)
        ended = client.get(job_id)
    _check_success(ended)


@job.command()
@click.argument("job_id", metavar="JOB")
@with_pages
@with_plane
def events(connection: Connection, *, job_id: str, **paging: Unpack[Paging]) -> None:
    """What happened to JOB, oldest first: who had it, what was refused, and why it ended as it did."""
    show_page(connection, lambda client: client.events(job_id, **paging), _EVENT, empty="nothing more", hint=_SEE)


@job.command()
@click.argument("job_id", metavar="JOB")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the job.")
@click.option("--version", type=int, metavar="N", help="Only if it still has this version, as `job get` showed it.")
@with_plane
def cancel(connection: Connection, *, job_id: str, reason: str, version: int | None) -> None:
    """Stop JOB: at once if it is not running yet, else by asking its worker."""
    stopped = connection.ask(lambda client: client.cancel(job_id, reason=reason, version=version), hint=_SEE)
    _show(stopped, connection.output)
    if stopped.state in LIVE:
        click.echo(f"asked its worker to stop; `holdfast job watch {stopped.id}` shows the end", err=True)


@job.command()
@click.argument("job_id", metavar="JOB")
@with_plane
def retry(connection: Connection, *, job_id: str) -> None:
    """Submit JOB anew, if it FAILED, ran into TIMEOUT or was CANCELLED. Repeated, it gives the same new job."""
    hint = f"See where it stands with `holdfast job get {job_id}`"
    again = connection.ask(lambda client: client.retry(job_id), hint=hint, absent=_SEE)
    _show(again, connection.output)


def _show_ended(connection: Connection, job_id: str, seconds: float | None) -> None:
    try:
        ended = connection.ask(lambda client: _wait(client, job_id, seconds), hint=_SEE)
    except TimeoutError as error:
        then = f"`holdfast why job {job_id}` says why; it goes on: `holdfast job get {job_id} --wait`"
        raise TookTooLong(f"{error}. {then}") from error
    except KeyboardInterrupt:
        click.echo(f"\njob {job_id} goes on: `holdfast job get {job_id} --wait`", err=True)
        raise
    _show(ended, connection.output)
    _check_success(ended)


def _wait(client: Client, job_id: str, seconds: float | None) -> JobView:
    client.get(job_id)  # whoever was answered outlives a restart of the plane
    if seconds is None or seconds > _PATIENCE_S:
        with suppress(TimeoutError):
            return client.wait(job_id, timeout=_PATIENCE_S)
        _tell_cause(client, job_id)
        seconds = None if seconds is None else seconds - _PATIENCE_S
    return client.wait(job_id, timeout=seconds)


def _tell_cause(client: Client, job_id: str) -> None:
    from holdfast.core.why import Weight  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    with suppress(HoldfastError):  # the wait outlives an outage, and so must this
        cause = client.why_job(job_id).findings[0]
        if cause.weight in (Weight.BLOCKED, Weight.WAITING):
            click.echo(f"it waits: {printable(cause.summary)} (`holdfast why job {job_id}`)", err=True)


def _check_success(ended: JobView) -> None:
    if ended.state == State.SUCCEEDED:
        return
    why = f" ({printable(str(ended.error['code']))})" if ended.error and "code" in ended.error else ""
    again = f"; then `holdfast job retry {ended.id}`" if ended.state != State.DENIED else ""
    raise Failed(f"job {ended.id} is {ended.state}{why}. `holdfast job events {ended.id}` tells how{again}")


def _show(found: JobView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    print_row(row, list(_columns(row)), output)


def _columns(row: dict[str, Any]) -> Iterator[Column]:
    """What there is to say about a job in its state."""
    yield from (text("id"), text("topic"), text("state"), moment("since"), _ATTEMPTS)
    for name in ("worker", "session", "replay_of", "frozen"):
        if row[name]:
            yield text(name)
    if row["state"] not in TERMINAL and row["cancel_requested"]:
        yield text("cancel_requested")
    if row["state"] in LIVE and row["deadline"] is not None:
        yield moment("deadline")
    for name in ("labels", "payload", "progress", "result", "error"):
        if row[name] not in (None, {}):
            yield json_value(name, width=200)
    yield text("version")


def print_event(event: EventView, output: str, *, whose: bool) -> None:
    """A line of a stream: nobody knows yet how wide the columns will be."""
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(event)
    if output != "table":
        click.echo(json_text(row))
        return
    columns = [_EVENT[0], *([text("job_id")] if whose else []), *_EVENT[1:]]
    click.echo("  ".join(show(row).ljust(_STREAM_WIDTHS.get(name, 0)) for name, show in columns).rstrip())
