"""`holdfast drill`: rehearse failures with real processes, and keep the report."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from holdfast.cli.connect import api_key_given, check_url
from holdfast.cli.output import print_rows, text, with_output
from holdfast.cli.refusals import Absent, Broken, Failed, Misused, refusal

if TYPE_CHECKING:
    from holdfast.ops.drills.engine import Drill
    from holdfast.ops.drills.findings import Report
    from holdfast.ops.drills.site import Site

OUT = "holdfast-drill"
TERMINATED = 128 + signal.SIGTERM
"""The code that shells give it."""


@click.group()
def drill() -> None:
    """Rehearse failures: real processes are stopped, killed and cut off, and what follows is measured."""


@drill.command("list")
@with_output
def list_drills(output: str) -> None:
    """Every drill: what is done, and which promises it puts to the test."""
    from holdfast.ops.drills.catalogue import DRILLS  # noqa: PLC0415  (`holdfast --help` rehearses nothing)

    rows = [
        {
            "name": one.name,
            "promises": " ".join(one.promises),
            "on_staging": "yes" if one.on_staging else "no",
            "title": one.title,
            "hypothesis": one.hypothesis,
        }
        for one in DRILLS
    ]
    print_rows(rows, [text("name"), text("promises"), text("on_staging"), text("title")], output)


@drill.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--jobs", type=click.IntRange(1, 8), default=2, show_default=True, help="How many at once.")
@click.option("--store", metavar="URL", help="A server to rehearse on.  [default: a SQLite file of its own]")
@click.option("--bus", metavar="URL", help="A NATS server to rehearse with.  [default: none]")
@click.option("--plane", metavar="URL", help="A staging plane that is up already; needs --consent.")
@click.option("--consent", metavar="HOST:PORT", help="The plane's address once more: yes, drills may run there.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=OUT, show_default=True,
              help="Where to write report.html, report.json and report.xml (JUnit).")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True)
def run(
    names: tuple[str, ...], *, everything: bool, jobs: int, store: str | None, bus: str | None, plane: str | None,
    consent: str | None, out: Path, output: str,
) -> None:  # fmt: skip
    """Carry out drills, on a plane that is thrown away afterwards, and write the report.

    Exit code 7: a promise broke. 1: a drill could not be carried out. SIGTERM and Ctrl-C end what it started first.
    """
    import asyncio  # noqa: PLC0415

    from holdfast.errors import HoldfastError  # noqa: PLC0415
    from holdfast.ops.drills.engine import run_drills  # noqa: PLC0415
    from holdfast.ops.drills.report import to_json, to_text  # noqa: PLC0415
    from holdfast.ops.drills.site import ask_servers  # noqa: PLC0415

    chosen = _chosen(names, everything=everything, staging=plane is not None)
    site = _site(store, bus, plane, consent)

    def say(name: str, words: str) -> None:
        click.echo(f"{name}: {words}", err=True)

    async def until_told_to_end() -> list[Report]:
        rehearsal = asyncio.current_task()
        assert rehearsal is not None

        def end() -> None:
            if not rehearsal.cancelling():  # who says it twice does not keep it from tidying up
                rehearsal.cancel()

        # As Ctrl-C does: else planes and workers would outlive it for a moment, and its folder for ever.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        await ask_servers(site)
        return await run_drills(chosen, site, jobs=jobs, say=say)

    try:
        reports = asyncio.run(until_told_to_end())
    except HoldfastError as error:
        raise refusal(error, then="Check --store and --bus") from error
    except ValueError as error:
        raise Misused(f"{error}. Check --store and --bus") from error
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None
    # Told first: what has taken minutes is not to be lost where a folder cannot be written.
    click.echo(to_json(reports) if output == "json" else to_text(reports))
    _write(out, reports)
    _judge(reports, out)


@drill.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=OUT)
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "junit", "html")), default="text", show_default=True
)
def report(folder: Path, *, form: str) -> None:
    """Show the report of the last drills again, from the FOLDER that they wrote."""
    from holdfast.errors import Invalid  # noqa: PLC0415
    from holdfast.ops.drills.page import to_page  # noqa: PLC0415
    from holdfast.ops.drills.report import from_json, to_json, to_junit, to_text  # noqa: PLC0415

    try:
        reports = from_json((folder / "report.json").read_bytes())
    except FileNotFoundError as error:
        raise Absent(f"there is no report in {folder}. Run a drill first: `holdfast drill run --all`") from error
    except Invalid as error:
        raise Misused(f"{folder / 'report.json'}: {error}") from error
    forms = {"text": to_text, "json": to_json, "junit": to_junit, "html": to_page}
    click.echo(forms[form](reports))


def _chosen(names: Sequence[str], *, everything: bool, staging: bool) -> list[Drill]:
    from holdfast.ops.drills.catalogue import DRILLS, find_drill  # noqa: PLC0415

    if everything == bool(names):
        raise Misused("name the drills, or say --all. `holdfast drill list` shows them")
    if everything:
        return [one for one in DRILLS if one.on_staging or not staging]
    chosen = []
    for name in names:
        one = find_drill(name)
        if one is None:
            raise Absent(f"no drill {name!r}. `holdfast drill list` shows them")
        if staging and not one.on_staging:
            raise Misused(f"{name} would disturb others on a plane that is not thrown away. Leave --plane out")
        chosen.append(one)
    return chosen


def _site(store: str | None, bus: str | None, plane: str | None, consent: str | None) -> Site:
    from holdfast.ops.drills.site import Site  # noqa: PLC0415

    if plane is None:
        if consent is not None:
            raise Misused("--consent is for --plane alone: other drills use a plane of their own")
        if store and not _is_shared(store):
            raise Misused("a drill makes its own SQLite file. Leave --store out, or name a server")
        return Site(store=store or "", bus=bus or "")
    check_url(plane, "--plane")
    if store is not None or bus is not None:
        raise Misused("a plane that is up has its own store and bus. Leave --store and --bus out")
    name = urlsplit(plane).netloc
    if consent != name:
        raise Misused(f"drills put load on {name} and leave finished jobs there. If they may, say --consent {name}")
    return Site(plane=plane.rstrip("/"), api_key=api_key_given())


def _is_shared(store: str) -> bool:
    from holdfast.stores import is_shared  # noqa: PLC0415

    try:
        return is_shared(store)
    except ValueError as error:
        raise Misused(str(error)) from None


def _write(out: Path, reports: Sequence[Report]) -> None:
    from holdfast.ops.drills.page import to_page  # noqa: PLC0415
    from holdfast.ops.drills.report import to_json, to_junit  # noqa: PLC0415

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_bytes(to_json(reports))
        (out / "report.xml").write_bytes(to_junit(reports))
        (out / "report.html").write_text(to_page(reports))
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}. Name another folder with --out") from error
    click.echo(f"the report is in {out / 'report.html'}", err=True)


def _judge(reports: Sequence[Report], out: Path) -> None:
    from holdfast.ops.drills.findings import Verdict  # noqa: PLC0415
    from holdfast.ops.drills.report import broken_promises  # noqa: PLC0415

    if broken := broken_promises(reports):
        raise Broken(f"a promise did not hold in {', '.join(broken)}. Look at {out / 'report.html'}")
    if idle := [one.drill for one in reports if one.verdict is Verdict.NOT_RUN]:
        raise Failed(f"could not be carried out: {', '.join(idle)}. Look at {out / 'report.html'}, and run them again")
