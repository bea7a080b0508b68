"""The `holdfast` command."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.lock import lock


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def cli() -> None:
    """Look at the locks of a store, and release them."""


cli.add_command(lock)


def main() -> None:
    cli()
