"""The documentation is true: its links lead somewhere, and nothing public is missing from it. Examples: `test_docs_examples`."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import click
import pytest

from holdfast import errors
from holdfast.config import SECTIONS, Settings, WebhookSettings, load
from holdfast.core.people import People
from holdfast.core.retention import Retention
from holdfast.core.run import RUN_TERMINAL, STEP_TERMINAL
from holdfast.core.share import Quota, Quotas
from holdfast.core.topic import Topic, Topics
from holdfast.flow import recover
from holdfast.gateway import problems
from holdfast.locks import errors as lock_errors
from holdfast.stores import effects as effect_verbs
from holdfast.wiring import CLASSES
from holdfast.worker import errors as worker_errors

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: The rows of docs/reference/acceptance.md that this release answers for.
ROWS = frozenset(range(1, 111))
#: Those that no test shows yet. It may only shrink.
PENDING: frozenset[int] = frozenset()

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_SHOWN_BY = re.compile(r"`([\w./-]+\.py)::(\w+)`")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its code blocks and code spans: what is a link there is a link."""
    return re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def mentions(page: Path, name: str) -> bool:
    """Whether a page has the name as code: alone, called, or followed by what it takes."""
    return re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", page.read_text()) is not None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for groups in _LINK.findall(prose(page)):
        link = groups[0] or groups[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    docs = ROOT / "docs"
    reached, waiting = set[Path](), [docs / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = (groups[0].partition("#")[0] for groups in _LINK.findall(prose(page)))
        waiting.extend((page.parent / link).resolve() for link in links if link.endswith(".md") and ":" not in link)

    assert sorted(named(page) for page in PAGES if docs in page.parents and page not in reached) == []


def commands() -> dict[str, set[str]]:
    """Every command of `holdfast`, with the long names of its options."""
    root = getattr(importlib.import_module("holdfast.cli"), "cli", None)
    if root is None:
        pytest.skip("holdfast.cli has no `cli` group yet")

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, set[str]]]:
        yield path, {max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)}
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                yield from walk(child, f"{path} {name}")

    return dict(walk(root, "holdfast"))


def test_commands_and_options_are_those_documented() -> None:
    """Both ways: nothing exists that is not described, and nothing is described that does not exist."""
    page = (ROOT / "docs/reference/cli.md").read_text()
    sections = re.split(r"^#+ +`(holdfast[^`]*)` *$", page, flags=re.MULTILINE)
    described = {
        name: set(re.findall(r"--[a-z][a-z-]+", text))
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
    }

    assert described == commands()


def test_metrics_that_are_named_are_in_the_tables() -> None:
    """What the tables say is compared with what is served in tests/test_metrics.py."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = set(re.findall(r"^\| `(holdfast_\w+)` \|", page, re.MULTILINE))

    assert set(re.findall(r"\bholdfast_[a-z_]+", page)) <= rows


def test_events_are_those_documented() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| [A-Z]+ \|", page, re.MULTILINE))
    logged = set(re.findall(r'"((?:lock|loop)\.[a-z_]+)"', (ROOT / "src/holdfast/locks/observe.py").read_text()))
    for module in ("telemetry", "loops", "gateway/app"):
        logged |= set(
            re.findall(
                r'(?:_log(?:_run)?\(logging\.[A-Z]+, |logger\.\w+\()"([a-z_]+\.[a-z_]+)[" ]',
                (ROOT / f"src/holdfast/{module}.py").read_text(),
            )
        )

    assert rows == logged


def test_kinds_of_a_jobs_events_are_those_documented() -> None:
    page = (ROOT / "docs/reference/job-events.md").read_text()
    places = (p for folder in ("core", "flow", "stores") for p in (ROOT / "src/holdfast" / folder).glob("*.py"))
    sources = "".join(p.read_text() for p in places)
    told = {
        *re.findall(r'\bkind="([a-z_]+\.[a-z_]+)"', sources),
        *re.findall(r'(?:tell|note|Note)\((?:[^"]|"")*"([a-z_]+\.[a-z_]+)"', sources),
        *(f"run.{state}" for state in RUN_TERMINAL),
        *(f"step.{state}" for state in STEP_TERMINAL),
        *(f"job.{kind}" for kind in recover._KINDS.values()),
        *effect_verbs._TOLD.values(),
    }

    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE)) == told


def test_reasons_of_recovery_are_those_documented() -> None:
    page = (ROOT / "docs/reference/job-events.md").read_text().partition("## Reasons of recovery")[2]
    plane = ROOT / "src/holdfast"
    places = [
        plane / "core/recovery.py",
        plane / "reconciler.py",
        plane / "flow/recover.py",
        *plane.glob("gateway/*.py"),
    ]
    given = r'(?:Action\(Remedy\.\w+, |requeue\(job, |reason=|DRAINING = |UNABLE = )"([a-z-]+)"'
    reasons = {reason for place in places for reason in re.findall(given, place.read_text())}

    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == reasons


def test_settings_are_those_documented(tmp_path: Path) -> None:
    """The example on the page has every setting, loads, and shows the defaults."""
    page = (ROOT / "docs/how-to/run-the-plane.md").read_text()
    [example] = [block["body"] for block in _FENCE.finditer(page) if block["language"] == "toml"]
    file = tmp_path / "plane.toml"
    file.write_text(example)
    document = tomllib.loads(example)
    [topic] = document["topics"].values()
    own = {field.name for field in fields(Settings) if field.name not in SECTIONS} - {"api_key"}

    loaded = load(file)

    assert set(document) == set(SECTIONS)
    assert set(document["plane"]) == own
    assert set(topic) == {field.name for field in fields(Topic)} - {"name"}
    assert set(document["retention"]) == {field.name for field in fields(Retention)}
    assert set(document["tenants"]["acme"]) == {field.name for field in fields(Quota)}
    assert set(document["webhooks"]) == {field.name for field in fields(WebhookSettings)}
    assert replace(loaded, topics=Topics(), tenants=Quotas(), people=People()) == Settings()


def test_locks_of_the_plane_are_those_documented() -> None:
    page = (ROOT / "docs/reference/lock-classes.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w:-]+:)[<\w>]+` \| (\d+) s \| `(\w+)` \|", page, re.MULTILINE)

    assert {(name, prefix, float(ttl), pattern) for name, prefix, ttl, pattern in rows} == {
        (declared.name, declared.key_prefix, declared.ttl, declared.pattern) for declared in CLASSES
    }


def test_every_public_name_is_documented() -> None:
    names = getattr(importlib.import_module("holdfast.locks"), "__all__", None)
    if names is None:
        pytest.skip("holdfast.locks has no __all__ yet")
    page = ROOT / "docs/reference/locks.md"

    assert [name for name in names if not mentions(page, name)] == []


def subclasses(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        yield from subclasses(child)


def test_errors_are_those_documented() -> None:
    """Both ways: name, code, HTTP status and whether a retry is right, as the classes have them."""
    importlib.import_module("holdfast.gateway.routes")  # whose modules may add to the tree
    page = (ROOT / "docs/reference/errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([a-z-]+)` \| (\d{3}) \| .* \| (yes|no|[^|]*?)\b[^|]*\|$", page, re.MULTILINE)
    of_plane = {e for e in subclasses(errors.HoldfastError) if not e.__name__.startswith("_")}
    # A store may have some of its own, which nobody outside of it meets.
    of_locks = {e for e in subclasses(lock_errors.LockError) if e.__module__ == lock_errors.__name__} - {
        lock_errors.LockError
    }
    told = {name: (code, int(status)) for name, code, status, _ in rows}
    public = {e for e in of_plane if e.__module__ == errors.__name__}

    assert told == {e.__name__: (e.code, e.status) for e in public | of_locks}  # type: ignore[attr-defined]
    assert {e.code for e in of_plane} <= {code for code, _ in told.values()}  # type: ignore[attr-defined]
    retried = {name: word == "yes" for name, *_, word in rows if name in {e.__name__ for e in public}}
    assert retried == {e.__name__: e.retryable for e in public}  # type: ignore[attr-defined]


def test_what_happened_is_mapped_to_what_is_said() -> None:
    """Each error with its status, each metric and each event of the table is one that exists."""
    page = (ROOT / "docs/reference/errors.md").read_text().partition("## From what happened")[2].partition("\n## ")[0]
    metrics = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(
        r"^\| [^|`]+ \| (?:`(\w+)` )?\| (\d{3})? ?\| `(\w+)` \| `([a-z_.]+)` \| [^|]+ \|$", page, re.MULTILINE
    )
    every = [*subclasses(errors.HoldfastError), *subclasses(lock_errors.LockError)]
    known = {e.__name__: str(e.status) for e in every}  # type: ignore[attr-defined]

    assert len(rows) == page.count("\n| ") - 1
    for raised, status, metric, event in rows:
        assert known.get(raised, "") == status
        assert f"| `{metric}` |" in metrics
        assert f"| `{event}` |" in metrics


def test_problems_are_those_documented() -> None:
    """Every code that a plane can answer with, on the page of the interface and as a title."""
    page = (ROOT / "docs/reference/http-api.md").read_text()
    rows = set(re.findall(r"^\| `([a-z-]+)` \| \d{3} \|", page, re.MULTILINE))
    answered = {e.code for e in subclasses(errors.HoldfastError)} - {errors.PlaneUnavailable.code}  # type: ignore[attr-defined]

    assert rows == answered | {lock_errors.StoreRefused.code}
    assert rows <= set(problems.TITLES)


def test_what_a_handler_may_meet_is_documented() -> None:
    page = ROOT / "docs/reference/errors.md"
    raised = [e.__name__ for e in vars(worker_errors).values() if isinstance(e, type)]

    assert [name for name in raised if not mentions(page, name)] == []


@cache
def test_codes_of_failed_attempts_are_those_documented() -> None:
    page = (ROOT / "docs/reference/workers.md").read_text()
    section = page.partition("## What an attempt fails with\n")[2].partition("\n## ")[0]
    code = re.compile(r"\bfailed\(\s*\"([a-z-]+)\"")
    used = {found for path in (ROOT / "src/holdfast/worker").glob("*.py") for found in code.findall(path.read_text())}

    assert used == set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))


def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def acceptance_rows() -> dict[int, str]:
    """The cell "shown by" of every row, by its number."""
    page = (ROOT / "docs/reference/acceptance.md").read_text()
    return {int(number): cell for number, cell in re.findall(r"^\| *(\d+) *\|.*\|([^|]*)\|$", page, re.MULTILINE)}


def test_acceptance_has_every_row() -> None:
    assert set(acceptance_rows()) == ROWS


def test_what_acceptance_names_exists() -> None:
    missing = [
        f"row {number}: {path}::{name}"
        for number, cell in acceptance_rows().items()
        for path, name in _SHOWN_BY.findall(cell)
        if name not in functions_of(ROOT / path)
    ]

    assert missing == []


def test_what_acceptance_names_is_not_skipped() -> None:
    """A row whose test does not run is not shown by it."""
    skipped = [
        f"row {number}: {path}::{name}"
        for number, cell in acceptance_rows().items()
        for path, name in _SHOWN_BY.findall(cell)
        if re.search(
            rf"@pytest\.mark\.(?:skip|xfail)\b[^\n]*\n(?:@.*\n)*(?:async )?def {name}\(", (ROOT / path).read_text()
        )
    ]

    assert skipped == []


def test_release_gate_leaves_no_test_out() -> None:
    """What CI runs is `make test`, and that runs every test that is there."""
    gate = (ROOT / ".ci/run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    [command] = re.findall(r"^test:.*\n(?:\t@.*\n)*\t\$\(PY\) -m pytest(.*)\n", makefile, re.MULTILINE)
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]

    assert "make test" in gate
    assert options["testpaths"] == ["tests"]
    chosen = re.findall(r"(?:^| )(-k|-m|--deselect|--ignore|--ignore-glob|tests\S*)", f"{command} {options['addopts']}")
    assert chosen == []


def test_acceptance_rows_are_shown_by_tests_unless_pending() -> None:
    shown = {number for number, cell in acceptance_rows().items() if _SHOWN_BY.search(cell)}

    assert shown == ROWS - PENDING


def test_the_diagram_of_states_is_drawn_from_the_table() -> None:
    drawn = subprocess.run(
        [sys.executable, "-c", "import draw_states; print(draw_states.page(), end='')"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert (ROOT / "docs/explanation/job-states.md").read_text() == drawn, "run: python tools/draw_states.py"
