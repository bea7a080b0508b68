"""`holdfast workflow`: definitions of runs, checked before anything is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.document import read_text, with_file
from holdfast.cli.output import json_value, moment, print_row, text
from holdfast.cli.refusals import Misused
from holdfast.cli.repeat import none_of, show_page, with_pages, with_watch

if TYPE_CHECKING:
    from holdfast.api.workflows import WorkflowView
    from holdfast.core.workflow import Definition

_LINE = [text("name"), text("revision"), moment("created_at"), text("description")]
_WHOLE = [*_LINE, json_value("steps", width=200), json_value("definition", width=200)]
_SEE = "`holdfast workflow list` shows what there is"


@click.group()
def workflow() -> None:
    """Define workflows: check them, store them, look at them."""


@workflow.command()
@with_file
@with_plane
def apply(connection: Connection, *, file: Path) -> None:
    """Store the definition in FILE (YAML or JSON; - for stdin) as the next revision, if it is another one.

    Runs that are under way keep the revision they began with.
    """
    document = _read(file)
    _parse(file, document)
    applied = connection.ask(lambda client: client.apply_workflow(document))
    _show(applied, connection.output)


@workflow.command()
@with_file
def validate(file: Path) -> None:
    """Say what is wrong with the definition in FILE (- for stdin), with its line. Asks no plane."""
    definition = _parse(file, _read(file))
    click.echo(f"{definition.name}: {len(definition.steps)} steps, nothing wrong", err=True)


@workflow.command("list")
@with_pages
@with_watch
@with_plane
def list_workflows(connection: Connection, *, watch: bool, cursor: str | None, limit: int) -> None:
    """Workflows by name, each in its newest revision."""
    show_page(
        connection,
        lambda client: client.workflows(cursor=cursor, limit=min(limit, 100)),
        _LINE,
        empty=none_of("workflow", cursor=cursor),
        watch=watch,
    )


@workflow.command()
@click.argument("name")
@click.option("--revision", type=click.IntRange(min=1), help="[default: the newest]")
@click.option("--revisions", is_flag=True, help="List its revisions instead, newest first.")
@with_plane
def show(connection: Connection, *, name: str, revision: int | None, revisions: bool) -> None:
    """One workflow: its definition, as it was understood."""
    if revisions:
        show_page(connection, lambda client: client.workflow_revisions(name), _LINE, empty="there is none", hint=_SEE)
    else:
        _show(connection.ask(lambda client: client.workflow(name, revision=revision), hint=_SEE), connection.output)


@workflow.command()
@click.argument("source", metavar="NAME|FILE")
@click.option("--as", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True)
@click.option("--revision", type=click.IntRange(min=1), help="Of NAME.  [default: the newest]")
@with_plane
def graph(connection: Connection, *, source: str, form: str, revision: int | None) -> None:
    """Draw a workflow: one that the plane has, by NAME, or the one in FILE, without a plane."""
    from msgspec import convert  # noqa: PLC0415

    from holdfast.core.workflow import Definition  # noqa: PLC0415
    from holdfast.core.workflow_drawing import draw_mermaid, draw_text  # noqa: PLC0415

    file = Path(source)
    if source == "-" or file.suffix in {".yaml", ".yml", ".json"} or file.is_file():
        definition = _parse(file, _read(file))
    else:
        found = connection.ask(lambda client: client.workflow(source, revision=revision), hint=_SEE)
        definition = convert(found.definition, Definition)
    drawing = (draw_mermaid if form == "mermaid" else draw_text)(definition)
    if connection.output in {"json", "jsonl"}:
        print_row({"name": definition.name, "as": form, "drawing": drawing}, [], connection.output)
    else:
        click.echo(drawing)


def _read(file: Path) -> str:
    return read_text(file, forms="YAML or JSON")


def _parse(file: Path, document: str) -> Definition:
    from holdfast.core.document import Refused  # noqa: PLC0415
    from holdfast.core.workflow_check import parse  # noqa: PLC0415

    try:
        return parse(document)
    except Refused as error:
        raise Misused(f"{file}:{error.line}: {error.reason}") from error


def _show(found: WorkflowView, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    print_row(to_builtins(found), _WHOLE, output)
