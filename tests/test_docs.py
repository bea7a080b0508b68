"""The documentation is true: its examples run, its links lead somewhere, and nothing public is missing from it."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import servers
from harness import make_backend

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLE_S_MAX = 30
#: Addresses that examples use. The private server of the test run takes their place.
ADDRESSES = {
    "redis://127.0.0.1:6379/0": "redis",
    "postgresql://app@127.0.0.1/app": "postgres",
    "etcd://127.0.0.1:2379": "etcd",
}

#: The rows of docs/reference/acceptance.md that this release answers for.
ROWS = frozenset([*range(1, 17), *range(30, 34), *range(36, 41), *range(46, 50), *range(77, 81), 86, 87, 95, 96, 97])
#: Those that no test shows yet. It may only shrink.
PENDING: frozenset[int] = frozenset()

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_NOT_RUN = re.compile(r"<!-- not run: \S.*? -->\s*\Z")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_SHOWN_BY = re.compile(r"`([\w./-]+\.py)::(\w+)`")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Example(NamedTuple):
    page: Path
    line: int
    script: str


def examples() -> Iterator[Example]:
    """Python blocks that are run: all but those directly under a `<!-- not run: reason -->`."""
    for page in PAGES:
        text = page.read_text()
        for block in _FENCE.finditer(text):
            if block["language"] == "python" and not _NOT_RUN.search(text[: block.start()]):
                yield Example(page, text.count("\n", 0, block.start()) + 1, block["body"])


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


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: f"{named(example.page)}:{example.line}")
def test_example_runs(example: Example, running: dict[str, servers.Server | None], tmp_path: Path) -> None:
    text = example.script
    for address, backend in ADDRESSES.items():
        if address in text:
            text = text.replace(address, make_backend(backend, running, tmp_path).url)
    script = tmp_path / "example.py"
    script.write_text(text)

    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stderr


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


def test_metrics_are_those_documented() -> None:
    module = ROOT / "src/holdfast/locks/prometheus.py"
    if not module.exists():
        pytest.skip("holdfast.locks.prometheus does not exist yet")
    page = (ROOT / "docs/reference/metrics.md").read_text()

    def metrics(text: str) -> set[str]:
        # The client library adds "_total" to a counter by itself.
        return {name.removesuffix("_total") for name in re.findall(r"\bholdfast_[a-z_]+", text)}

    assert metrics(page) == metrics(module.read_text())


def test_events_are_those_documented() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    logged = set(re.findall(r'"((?:lock|loop)\.[a-z_]+)"', (ROOT / "src/holdfast/locks/observe.py").read_text()))

    assert set(re.findall(r"^\| `((?:lock|loop)\.[a-z_]+)` \|", page, re.MULTILINE)) == logged


def test_every_public_name_is_documented() -> None:
    names = getattr(importlib.import_module("holdfast.locks"), "__all__", None)
    if names is None:
        pytest.skip("holdfast.locks has no __all__ yet")
    page = ROOT / "docs/reference/locks.md"

    assert [name for name in names if not mentions(page, name)] == []


def test_every_error_is_in_the_table_of_errors() -> None:
    """Name, code and HTTP status, as the classes have them."""
    from holdfast.locks import errors

    page = (ROOT / "docs/reference/errors.md").read_text()
    rows = {
        tuple(cell.strip(" `") for cell in row.split("|")[1:4]) for row in re.findall(r"^\|.*\|$", page, re.MULTILINE)
    }
    raised = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.LockError)]

    assert [
        e.__name__ for e in raised if (e.__name__, e.code, str(e.status)) not in rows and e is not errors.LockError
    ] == []


@cache
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
