"""`holdfast policy`: what may run. Check a draft, try it, publish it, and go back."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.document import read_text, with_file
from holdfast.cli.output import json_text, moment, print_row, print_rows, text
from holdfast.cli.refusals import Misused
from holdfast.cli.repeat import Paging, show_page, with_pages
from holdfast.cli.saying import F, with_by, with_reason

if TYPE_CHECKING:
    from holdfast.api.policies import PolicyView, Simulation
    from holdfast.client import Client

_VERSION = [
    *(text("version"), text("active"), text("rules"), moment("published_at")),
    *(text("by"), text("file"), text("reason"), text("hash")),
]
_STANDING = [
    *(text("version"), text("hash"), moment("since"), text("by"), text("reason")),
    ("used here", lambda row: str(row["here"]["version"])),
]
_CHANGE = [text("job_id"), text("topic"), text("before"), text("after"), text("rule_after"), text("reason")]
_SEE = "`holdfast policy history` lists the versions"
_LOOK = "`holdfast policy show` says which version is active"


@click.group()
def policy() -> None:
    """Say what may run, what needs an approval, and what is throttled."""


def with_word(command: F) -> F:
    """Who says it, why, and of what they have read."""
    command = with_by(with_reason("Why; kept in the history.")(command))
    return click.option(
        "--expect", type=click.IntRange(min=0), metavar="N", help="Only if this version is still the active one."
    )(command)


@policy.command()
@with_file
def check(file: Path) -> None:
    """Say what is wrong with the rules in FILE (YAML, or TOML by its name; - for stdin), with lines. Asks no plane."""
    document = _load(file)
    rules, default = len(document.get("rules", [])), document["default"]["action"]
    click.echo(f"{file}: {rules} rules, default {default}: nothing wrong", err=True)


@policy.command()
@click.option("--version", "number", type=click.IntRange(min=1), metavar="N", help="[default: the active one]")
@with_plane
def show(connection: Connection, *, number: int | None) -> None:
    """The active version, which version the plane that answers uses, and the rules."""
    if number is not None:
        _show(connection.ask(lambda client: client.policy_version(number), hint=_SEE), _VERSION, connection.output)
        return
    found = connection.ask(lambda client: client.policy())
    _show_standing(found, connection.output)
    if found.version != found.here.version:
        click.echo(f"this plane still uses version {found.here.version}; it looks again every 2 s", err=True)


@policy.command()
@with_pages
@with_plane
def history(connection: Connection, **paging: Unpack[Paging]) -> None:
    """Every version that was published, newest first: by whom, and why."""
    show_page(
        connection,
        lambda client: client.policy_versions(**paging),
        _VERSION,
        empty="none was ever published: everything is allowed",
    )


@policy.command()
@with_file
@click.option("--version", "number", type=click.IntRange(min=1), metavar="N", help="[default: the active one]")
@with_plane
def diff(connection: Connection, *, file: Path, number: int | None) -> None:
    """What FILE would change, line by line. Exit code 1 if anything."""
    draft = _load(file)

    def find(client: Client) -> tuple[int, Any]:
        if number is not None:
            return number, client.policy_version(number).document
        active = client.policy()
        return active.version, active.document

    version, document = connection.ask(find, hint=_SEE)
    before, after = ([] if one is None else _lines(one) for one in (document, draft))
    lines = list(difflib.unified_diff(before, after, f"version {version}", str(file), lineterm=""))
    for line in lines:
        click.echo(line)
    if lines:
        click.get_current_context().exit(1)


@policy.command()
@with_file
@click.option("--jobs", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="How many, the newest.")
@with_plane
def simulate(connection: Connection, *, file: Path, jobs: int) -> None:
    """Ask the rules in FILE about the tenant's newest jobs, and show which would be decided otherwise."""
    draft = _load(file)
    _show_simulation(connection.ask(lambda client: client.simulate_policy(draft, jobs=jobs)), connection.output)


@policy.command()
@with_file
@with_word
@with_plane
def publish(connection: Connection, *, file: Path, reason: str, by: str, expect: int | None) -> None:
    """Make the rules in FILE the next version, in force at once on this plane, within 2 s on all others."""
    draft = _load(file)
    published = connection.ask(
        lambda client: client.publish_policy(draft, reason=reason, expected=expect, by=by), hint=_LOOK
    )
    _show_standing(published, connection.output, document=False)


@policy.command()
@click.argument("number", metavar="VERSION", type=click.IntRange(min=1))
@with_word
@with_plane
def rollback(connection: Connection, *, number: int, reason: str, by: str, expect: int | None) -> None:
    """Make an older VERSION the active one again."""
    active = connection.ask(
        lambda client: client.roll_back_policy(number, reason=reason, expected=expect, by=by), hint=_SEE
    )
    _show_standing(active, connection.output, document=False)


def _load(file: Path) -> Any:  # noqa: ANN401  (the document, as JSON has it)
    from holdfast.core.rules import load_rules  # noqa: PLC0415
    from holdfast.errors import Invalid  # noqa: PLC0415

    words = read_text(file, forms="YAML or TOML")
    try:
        return load_rules(words, name=str(file))
    except Invalid as error:
        faults = str(error).splitlines()
        for fault in faults[:-1]:
            click.echo(fault, err=True)
        raise Misused(faults[-1]) from error


def _lines(document: Any) -> list[str]:  # noqa: ANN401
    return json_text(document, indent=2).splitlines()


def _show_standing(found: PolicyView, output: str, *, document: bool = True) -> None:
    if found.version == 0 and output == "table":
        click.echo("none was ever published: everything is allowed", err=True)
        return
    _show(found, _STANDING, output, document=document)


def _show(found: object, columns: list[Any], output: str, *, document: bool = True) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    print_row(row, columns, output)
    if document and output == "table":
        click.echo()
        click.echo("\n".join(_lines(row["document"])))


def _show_simulation(found: Simulation, output: str) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    row = to_builtins(found)
    if output != "table":
        print_row(row, [], output)
        return
    click.echo(f"{found.jobs} jobs looked at, {found.changed} would be decided otherwise", err=True)
    for action in sorted(found.before.keys() | found.after.keys()):
        click.echo(f"{action}: {found.before.get(action, 0)} → {found.after.get(action, 0)}", err=True)
    if found.failed:
        click.echo(f"for {found.failed} of them a rule cannot be evaluated: see the reasons", err=True)
    print_rows(row["examples"], _CHANGE, output)
