"""`holdfast approval`: what waits for a person's word, and the word."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.job import Json
from holdfast.cli.output import Column, json_value, moment, print_row, print_rows, text
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import F, with_by, with_reason

if TYPE_CHECKING:
    from holdfast.api.approvals import ApprovalView
    from holdfast.client import Client

VIA = "cli"
STATES = ("pending", "approved", "rejected", "expired", "superseded", "consumed")

_QUORUM: Column = ("yes", lambda row: f"{row['in_favour']}/{row['quorum']}")
_WHOM: Column = ("approvers", lambda row: ", ".join([*row["approvers"], *row["delegates"]]) or "anybody")
_VERDICT: Column = (
    "verdict",
    lambda row: f"{row['verdict']['decision']} by {row['verdict']['by'] or 'time'}" if row["verdict"] else "-",
)
_ORIGINAL: Column = (
    "original",
    lambda row: json_value("arguments", width=500)[1](row["original"] or {"arguments": None}),
)
_ORIGINAL_DIGEST: Column = ("original_digest", lambda row: row["original"]["digest"] if row["original"] else "-")
_LINE = [text("id"), text("state"), text("tool"), text("requested_by"), _WHOM, _QUORUM, moment("expires_at")]
_WHOLE = [
    *(*_LINE, _VERDICT, text("job_id"), text("run"), text("step"), text("round"), text("risk"), text("rule")),
    *(
        text("policy"),
        text("reason"),
        text("message"),
        text("effect_preview"),
        text("separate"),
        json_value("choices"),
        json_value("response_schema", width=500),
        json_value("arguments", width=500),
    ),
    *(text("digest"), _ORIGINAL, _ORIGINAL_DIGEST, json_value("response", width=200), text("fence")),
    *(json_value("consumed_by_fence"), moment("created_at"), text("version")),
]
_WORD = [moment("at"), text("by"), text("via"), text("decision"), text("comment")]
_MORE = {
    "approve": "",
    "reject": " --reason TEXT",
    "edit": " --arguments JSON --reason TEXT",
    "respond": " --response JSON",
}
"""What each decision needs beside the version."""
_SEE = "`holdfast approval list --state pending` shows what waits"


@click.group()
def approval() -> None:
    """See what waits for a person's word; approve, reject, edit, respond, delegate."""


def with_word(command: F) -> F:
    """Who says it, of what they have read."""
    return click.option(
        "--version", type=click.IntRange(min=1), metavar="N", help="Only if the approval still has this version."
    )(with_by(command))


@approval.command("list")
@click.option("--state", type=click.Choice([*STATES, "all"]), default="pending", show_default=True)
@click.option("--job", metavar="JOB", help="Only those of this job, or of the steps of this run.")
@click.option("--assignee", metavar="NAME", help="Only those that NAME is asked to decide.")
@with_pages
@with_watch
@with_plane
def list_approvals(
    connection: Connection, *, state: str, job: str | None, assignee: str | None, watch: bool, **paging: Unpack[Paging]
) -> None:
    """Approvals, newest first."""
    show_page(
        connection,
        lambda client: client.approvals(state=None if state == "all" else state, job=job, assignee=assignee, **paging),
        _LINE,
        empty="no approval waits for a decision"
        if state == "pending" and not (job or assignee or paging["cursor"])
        else none_of("approval", state != "all", job, assignee, cursor=paging["cursor"]),
        watch=watch,
    )


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@with_plane
def show(connection: Connection, *, approval_id: str) -> None:
    """One approval: what is to be done with which arguments, and what was said about it."""
    found = connection.ask(lambda client: client.approval(approval_id), hint=_SEE)
    _show(found, connection.output)
    if found.state == "pending":
        first, *others = sorted(found.choices, key="reject".__eq__)  # a no is not what to offer first
        command = f"holdfast approval {first} {approval_id} --version {found.version}{_MORE[first]}"
        click.echo(", or ".join([f"decide with `{command}`", *([", ".join(others)] if others else [])]), err=True)


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the approval.")
@with_word
@with_plane
def approve(connection: Connection, *, approval_id: str, reason: str, by: str, version: int | None) -> None:
    """Say yes. Where several must, the last of them decides."""
    _decide(connection, lambda client: client.approve(approval_id, by=by, comment=reason, version=version, via=VIA), by)


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@with_reason("Why; kept with the approval.")
@with_word
@with_plane
def reject(connection: Connection, *, approval_id: str, reason: str, by: str, version: int | None) -> None:
    """Say no: the job is DENIED."""
    _decide(connection, lambda client: client.reject(approval_id, by=by, comment=reason, version=version, via=VIA), by)


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--arguments", type=Json(), required=True, metavar="JSON", help="The arguments: JSON, @FILE or -.")
@with_reason("Why; kept with the approval.")
@with_word
@with_plane
def edit(
    connection: Connection,
    *,
    approval_id: str,
    arguments: Any,  # noqa: ANN401
    reason: str,
    by: str,
    version: int | None,
) -> None:
    """Say yes to other arguments. They must fit the topic's schema, and the policy decides about them anew."""

    def ask(client: Client) -> ApprovalView:
        return client.edit_approval(approval_id, arguments, by=by, comment=reason, version=version, via=VIA)

    _decide(connection, ask, by)


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--response", type=Json(), required=True, metavar="JSON", help="The answer: JSON, @FILE or -.")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the approval.")
@with_word
@with_plane
def respond(
    connection: Connection,
    *,
    approval_id: str,
    response: Any,  # noqa: ANN401
    reason: str,
    by: str,
    version: int | None,
) -> None:
    """Say yes, with an answer that was asked for. The worker, or later steps of the run, find it."""

    def ask(client: Client) -> ApprovalView:
        return client.respond(approval_id, response, by=by, comment=reason, version=version, via=VIA)

    _decide(connection, ask, by)


@approval.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.argument("to", metavar="NAME")
@with_reason("Why; kept with the approval.")
@with_by
@with_plane
def delegate(connection: Connection, *, approval_id: str, to: str, reason: str, by: str) -> None:
    """Let NAME decide in your place, this once. The two of you count as one."""
    _decide(connection, lambda client: client.delegate(approval_id, to, by=by, comment=reason), by)


def _decide(connection: Connection, ask: Callable[[Client], ApprovalView], by: str) -> None:
    if not by:
        raise click.UsageError("say who you are: --by NAME, or set HOLDFAST_ACTOR")
    _show(connection.ask(ask, hint=_SEE), connection.output)


def _show(found: ApprovalView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    print_row(row, _WHOLE, output)
    if output == "table" and row["words"]:
        click.echo()
        print_rows(row["words"], _WORD, output)
