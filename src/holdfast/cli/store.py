"""`holdfast store`: all that a store keeps, into a file, out of one, or straight into another store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import print_rows, text, with_output
from holdfast.cli.refusals import Misused, refusal

if TYPE_CHECKING:
    from holdfast.moving import Moved

_MOVED = [text("kind"), text("rows"), text("sha256")]
_FILE = click.Path(dir_okay=False, path_type=Path)


def _store_option(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--store", "url", envvar="HOLDFAST_STORE", required=True, metavar="URL", show_envvar=True, help=words
    )


@click.group()
def store() -> None:
    """Move a plane from one store to another, or keep a copy of all that it has.

    Payloads and results are in such a file: keep it as you keep the store.
    """


@store.command("export")
@click.argument("file", type=_FILE)
@_store_option("The store to read.")
@click.option("--alone", is_flag=True, help="Refuse if a plane works on it: for a copy that is to take its place.")
@with_output
def export_file(file: Path, *, url: str, alone: bool, output: str) -> None:
    """Write all that a store keeps to FILE, as JSON lines; compressed, if its name ends in .gz.

    Of one moment: a plane may go on meanwhile, unless --alone is given; what it does from then on is not in the file.
    """
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415
    from holdfast.moving import export_store  # noqa: PLC0415  (`holdfast --help` needs no store)

    told = _Progress()
    _run(export_store(url, file, alone=alone, runtime=SYSTEM, progress=told), told, output)


@store.command("import")
@click.argument("file", type=_FILE)
@_store_option("The store to fill. It must be empty.")
@with_output
def import_file(file: Path, *, url: str, output: str) -> None:
    """Fill an empty store with what FILE has: all of it, or nothing."""
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415
    from holdfast.moving import import_store  # noqa: PLC0415

    told = _Progress()
    _run(import_store(file, url, runtime=SYSTEM, progress=told), told, output)


@store.command()
@click.option("--from", "source", required=True, metavar="URL", help="The store to read. It stays as it is.")
@click.option("--to", "target", required=True, metavar="URL", help="The store to fill. It must be empty.")
@with_output
def migrate(*, source: str, target: str, output: str) -> None:
    """Fill an empty store with all that another one has: all of it, or nothing. No plane may work on either."""
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415
    from holdfast.moving import migrate_store  # noqa: PLC0415

    told = _Progress()
    _run(migrate_store(source, target, runtime=SYSTEM, progress=told), told, output)


class _Progress:
    """On stderr: on a terminal one line that is written over, else a line for each kind when it is complete."""

    def __init__(self) -> None:
        self._kind = ""
        self._rows = 0

    def __call__(self, kind: str, rows: int) -> None:
        if kind != self._kind:
            self.end()
        self._kind, self._rows = kind, rows
        if sys.stderr.isatty():
            click.echo(f"\r{kind}: {rows}", nl=False, err=True)

    def end(self) -> None:
        if self._kind:
            click.echo("" if sys.stderr.isatty() else f"{self._kind}: {self._rows}", err=True)
        self._kind = ""


def _run(moving: Coroutine[Any, Any, list[Moved]], told: _Progress, output: str) -> None:
    import asyncio  # noqa: PLC0415

    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        moved = asyncio.run(moving)
    except HoldfastError as error:
        raise refusal(error, then="") from error
    except ValueError as error:
        raise Misused(str(error)) from error
    finally:
        told.end()
    print_rows([row._asdict() for row in moved], _MOVED, output)
