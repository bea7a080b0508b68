"""`holdfast doctor`: what this store and this bus promise together, and which settings break it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connect import api_key_given, check_url
from holdfast.cli.output import age, print_row, print_rows, printable, text, with_output
from holdfast.cli.plane import load_settings
from holdfast.cli.refusals import Broken, refusal

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.promises import Ailment
    from holdfast.ops.doctor import Examination


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), envvar="HOLDFAST_CONFIG", show_envvar=True,
              help="A TOML file with the settings and topics of the plane.")  # fmt: skip
@click.option("--store", metavar="URL", help="Where jobs are kept.  [default: HOLDFAST_STORE, sqlite:///holdfast.db]")
@click.option("--bus", metavar="URL", help="What carries jobs to workers.  [default: HOLDFAST_BUS, in the store]")
@click.option("--url", "urls", metavar="URL", multiple=True,
              help="Of a process of the plane that runs: advice from what it has measured. May be repeated.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse warnings, too.")
@with_output
def doctor(
    config: Path | None, *, store: str | None, bus: str | None, urls: tuple[str, ...], strict: bool, output: str
) -> None:
    """Ask the store and the bus how they are set, and say what that promises.

    Exit code 7: a setting breaks a promise; with --strict, also if one is weaker than it could be.
    """
    from msgspec import to_builtins  # noqa: PLC0415

    from holdfast.core.promises import Severity  # noqa: PLC0415

    settings = load_settings(config, {"store": store, "bus": bus})
    found = _examine(settings, [_measured(url) for url in urls])
    if output == "table":
        _tell(found)
    else:
        from dataclasses import asdict  # noqa: PLC0415

        print_row(to_builtins(_plain(asdict(found))), [], output)
    wrong = [one for one in found.ailments if one.severity is Severity.BROKEN or strict]
    if wrong:
        codes = ", ".join(dict.fromkeys(one.code for one in wrong))
        raise Broken(f"do not run it like this: {codes}. The fix of each is above")


def _measured(url: str) -> str:
    from holdfast.client import Client  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    check_url(url, "--url")
    try:
        with Client(url, api_key=api_key_given()) as client:
            return client.metrics()
    except HoldfastError as error:
        raise refusal(error, then="Check --url, and HOLDFAST_API_KEY") from error


def _examine(settings: Settings, measured: list[str]) -> Examination:
    import asyncio  # noqa: PLC0415

    from holdfast.errors import HoldfastError  # noqa: PLC0415
    from holdfast.locks.runtime import SYSTEM  # noqa: PLC0415
    from holdfast.ops.doctor import examine  # noqa: PLC0415

    try:
        return asyncio.run(examine(settings, runtime=SYSTEM, measured=measured))
    except HoldfastError as error:
        raise refusal(error, then="Check --store and --bus, or HOLDFAST_STORE and HOLDFAST_BUS") from error
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--store' or '--bus'") from error


def _plain(examined: dict[str, Any]) -> dict[str, Any]:
    """Rows as objects: a program should not count columns."""
    return {
        **examined,
        "survivals": [row._asdict() for row in examined["survivals"]],
        "windows": [row._asdict() for row in examined["windows"]],
    }


def _tell(found: Examination) -> None:
    for part, inspected in (("store", found.store), ("bus", found.bus)):
        if inspected is None:
            click.echo(f"{part}: in the store")
            continue
        click.echo(f"{part}: {inspected.engine} {inspected.version} at {printable(inspected.place)}")
        facts = {fact.setting: fact.found for fact in inspected.facts} | inspected.settings
        click.echo("  " + ", ".join(f"{name} = {printable(value)}" for name, value in facts.items()))
    click.echo("\nwhat survives")
    print_rows([row._asdict() for row in found.survivals], [text("fault"), text("survives")], "table")
    click.echo("\nblind windows: how long, at worst, until the plane has put it right by itself")
    rows = [{**row._asdict(), "worst": age(row.worst_s)} for row in found.windows]
    print_rows(rows, [text("component"), text("trouble"), text("worst"), text("sum")], "table")
    click.echo("")
    if not found.ailments:
        click.echo("nothing is wrong")
    for ailment in found.ailments:
        _tell_ailment(ailment)


def _tell_ailment(ailment: Ailment) -> None:
    click.echo(f"{ailment.severity} {ailment.code} ({printable(ailment.about)}): {printable(ailment.summary)}")
    if ailment.evidence:
        click.echo(f"   evidence  {printable(ailment.evidence)}")
    if ailment.fix:
        click.echo(f"   fix       {printable(ailment.fix)}")
