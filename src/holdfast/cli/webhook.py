"""`holdfast webhook`: have somebody told of what happens, and see whether they heard it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import Column, json_value, moment, print_row, text
from holdfast.cli.repeat import Paging, none_of, show_page, with_pages, with_watch
from holdfast.cli.saying import Seconds

if TYPE_CHECKING:
    from holdfast.api.webhooks import PostView, WebhookSecret

_STATES = ("pending", "delivered", "failed")
_EVENTS: Column = ("events", lambda row: " ".join(row["events"]) or "-")
_STATE: Column = ("state", lambda row: "enabled" if row["enabled"] else f"disabled: {row['why_disabled']}")
_LINE = [text("name"), text("url"), _EVENTS, _STATE]
_TRIES: Column = ("tries", lambda row: str(len(row["tries"])))
_LAST: Column = ("last", lambda row: _tried(row["tries"][-1]) if row["tries"] else "-")
_POST = [text("id"), text("event"), text("state"), _TRIES, _LAST, moment("created_at"), moment("due")]
_SEE = "`holdfast webhook list` shows what there is"


def _tried(tried: dict[str, object]) -> str:
    return str(tried["error"] or tried["status"]) if tried["status"] is None else f"{tried['status']}"


@click.group()
def webhook() -> None:
    """Have somebody told of what happens; see whether they heard it."""


@webhook.command()
@click.argument("name")
@click.argument("address", metavar="URL")
@click.option("--event", "events", multiple=True, metavar="KIND",
              help="A kind such as run.failed, or a family such as 'approval.*'. Repeatable.")  # fmt: skip
@with_plane
def add(connection: Connection, *, name: str, address: str, events: tuple[str, ...]) -> None:
    """Post events of these kinds to URL. The secret is shown now, and never again."""
    _show_secret(connection, connection.ask(lambda client: client.add_webhook(name, address, events=events)))


@webhook.command("list")
@with_pages
@with_watch
@with_plane
def list_webhooks(connection: Connection, *, watch: bool, **paging: Unpack[Paging]) -> None:
    """Webhooks by name."""
    show_page(
        connection,
        lambda client: client.webhooks(**paging),
        _LINE,
        empty=none_of("webhook", cursor=paging["cursor"]),
        watch=watch,
    )


@webhook.command()
@click.argument("name")
@with_plane
def remove(connection: Connection, *, name: str) -> None:
    """Remove a webhook. What has not arrived fails."""
    connection.ask(lambda client: client.remove_webhook(name), hint=_SEE)
    click.echo(f"removed {name}", err=True)


@webhook.command()
@click.argument("name")
@with_plane
def enable(connection: Connection, *, name: str) -> None:
    """Post to a disabled webhook again, what happens from now on."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.enable_webhook(name), hint=_SEE)
    print_row(to_builtins(found), _LINE, connection.output)


@webhook.command()
@click.argument("name")
@click.option("--overlap", type=Seconds(0, 30 * 86400), default=86400.0, show_default=True, metavar="SECONDS",
              help="How long posts are signed with the old secret too.")  # fmt: skip
@with_plane
def rotate(connection: Connection, *, name: str, overlap: float) -> None:
    """Give a webhook a new secret. It is shown now, and never again."""
    made = connection.ask(lambda client: client.rotate_webhook_secret(name, overlap_s=overlap), hint=_SEE)
    _show_secret(connection, made)


@webhook.command()
@click.argument("name")
@with_plane
def test(connection: Connection, *, name: str) -> None:
    """Post something that means nothing."""
    _show_post(connection, connection.ask(lambda client: client.test_webhook(name), hint=_SEE))
    click.echo(f"`holdfast webhook log {name}` shows what became of it", err=True)


@webhook.command()
@click.argument("name")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@with_pages
@with_watch
@with_plane
def log(connection: Connection, *, name: str, state: str | None, watch: bool, **paging: Unpack[Paging]) -> None:
    """What was posted to a webhook, newest first, and how it went. What was sent is not shown."""
    show_page(
        connection,
        lambda client: client.webhook_posts(name, state=state, **paging),
        _POST,
        empty="nothing of that kind was posted" if state else "nothing was posted to it yet",
        watch=watch,
        hint=_SEE,
    )


@webhook.command()
@click.argument("post_id", metavar="POST")
@with_plane
def retry(connection: Connection, *, post_id: str) -> None:
    """Try a post that failed again. The receiver knows it by its id."""
    hint = "`holdfast webhook log NAME --state failed` shows which can be tried"
    _show_post(connection, connection.ask(lambda client: client.retry_post(post_id), hint=hint))


def _show_post(connection: Connection, post: PostView) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    columns = [column for column in _POST if column is not _TRIES]  # all of them, here, instead of their number
    print_row(to_builtins(post), [*columns, json_value("tries", width=200)], connection.output)


def _show_secret(connection: Connection, made: WebhookSecret) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(made)
    if connection.output == "table":
        print_row({**row["webhook"], "secret": made.secret}, [*_LINE, text("secret")], connection.output)
        click.echo("keep the secret now: it is not shown again", err=True)
    else:
        print_row(row, [], connection.output)
