"""`holdfast key`: keys that prove who somebody is."""

from __future__ import annotations

import click

from holdfast.cli.output import print_row, text, with_output
from holdfast.cli.refusals import Misused


@click.group()
def key() -> None:
    """Keys of people, which prove who decides an approval or changes the plane."""


@key.command("new")
@click.argument("name")
@with_output
def new(name: str, *, output: str) -> None:
    """Make a key for NAME, and the line for the plane's settings. Asks no plane, and keeps nothing.

    The key is shown this once: hand it to NAME, who sets HOLDFAST_API_KEY to it. The settings have its digest alone.
    """
    from holdfast.core.people import People, digest_of  # noqa: PLC0415  (what only this command needs)
    from holdfast.errors import Invalid  # noqa: PLC0415
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415

    made = SYSTEM.token() + SYSTEM.token()
    digest = digest_of(made.encode())
    try:
        People({name: digest})
    except Invalid as error:
        raise Misused(str(error)) from error
    row = {"name": name, "key": made, "digest": digest, "setting": f'[people]\n"{name}" = "{digest}"'}
    if output == "table":
        print_row(row, [text("name"), text("key")], output)
        click.echo(f"\nIn the settings of every gateway:\n\n{row['setting']}")
    else:
        print_row(row, [], output)
