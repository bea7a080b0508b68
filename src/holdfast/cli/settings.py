"""`holdfast config` and `holdfast completion`: how the command itself is set up."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.connect import Connection, config_file, read_profiles, with_plane
from holdfast.cli.output import print_rows, text
from holdfast.cli.refusals import Misused

_SETTING = [text("name"), text("value"), text("origin")]


@click.group()
def config() -> None:
    """See which plane the commands ask, and why that one."""


@config.command("list")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar="HOLDFAST_CONFIG", show_envvar=True,
    help="Also what a plane runs with that is started with this file: timeouts, retention and the rest.",
)  # fmt: skip
@with_plane
def list_settings(connection: Connection, *, file: Path | None) -> None:
    """The settings in force and where each was set: option, environment, profile, default. Asks no plane."""
    connection.check()
    path = config_file()
    profiles = read_profiles(path)
    api_key = "set" if connection.api_key else "not set"
    rows = [
        {"name": "url", "value": connection.url.value, "origin": connection.url.origin},
        {"name": "tenant", "value": connection.tenant.value, "origin": connection.tenant.origin},
        {"name": "api_key", "value": api_key, "origin": "HOLDFAST_API_KEY"},
        {"name": "profile", "value": connection.profile or "-", "origin": str(path)},
        {"name": "profiles", "value": ", ".join(profiles) or "-", "origin": str(path)},
    ]
    print_rows(rows + _of_plane(file), _SETTING, connection.output)


def _of_plane(file: Path | None) -> list[dict[str, str]]:
    from holdfast.config import explain  # noqa: PLC0415  (`holdfast --help` reads no settings)
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        return [setting._asdict() for setting in explain(file)] if file is not None else []
    except HoldfastError as error:
        raise Misused(str(error)) from error


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the script that completes commands in SHELL.

    For bash and zsh: eval "$(holdfast completion bash)". For fish: holdfast completion fish | source.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    writer = get_completion_class(shell)
    assert writer is not None, "the choices are the shells that click knows"
    click.echo(writer(context.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
