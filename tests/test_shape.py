"""The shape of the tree: small modules, telling names, backends in their places, no machine's paths, no registry's address."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import buses, stores
from holdfast.locks import stores as lock_stores

ROOT = Path(__file__).parent.parent
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50

#: Larger than allowed, with their size today. An entry may shrink or go; it may not grow, and none may be added.
LARGE_MODULES: dict[str, int] = {}
LARGE_FUNCTIONS: dict[str, int] = {}

VAGUE = {
    "base", "common", "data", "handler", "helper", "helpers", "info", "manager", "misc", "processor", "service",
    "util", "utils",
}  # fmt: skip
BACKENDS = {
    "apsw", "asyncpg", "hiredis", "httpx2", "nats", "prometheus_client", "psycopg", "redis", "sqlalchemy", "sqlite3",
    "starlette",
}  # fmt: skip
LATE = {"hashlib", "holdfast.locks.guards", "holdfast.locks.sync", "urllib.parse"}
"""Each takes a twentieth to a sixth as long to load as `holdfast.locks` itself."""
NOT_SOURCE = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache"}

_MACHINE_PATH = re.compile(r"(?<![\w./-])/(work|farm|root)/")
_ADDRESS = re.compile(r"(?:https?|file)://|^\s*--(?:index-url|extra-index-url|find-links|trusted-host)", re.MULTILINE)


def sources() -> list[Path]:
    """Every Python file of the project."""
    folders = ("src", "tests", "bench", "examples", "tools")
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def written_files() -> list[Path]:
    """What git tracks or would track; everything but caches where there is no git (an unpacked release)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        found = [p for p in ROOT.rglob("*") if not NOT_SOURCE & set(p.relative_to(ROOT).parts)]
    return sorted(p for p in found if p.is_file())


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """What stands right inside it, and could be or have a function. Expressions are most of a tree and have none."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, part, ())
        yield from inside if isinstance(inside, list) else ()  # the body of a lambda is an expression


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Every function of a module by its dotted name, with its number of lines (decorators not counted)."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in statements(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    assert child.end_lineno is not None
                    yield name, child.end_lineno - child.lineno + 1
                yield from walk(child, f"{name}.")
            else:
                yield from walk(child, prefix)

    return walk(ast.parse(path.read_text()), f"{named(path)}::")


def compared(node: ast.AST) -> Iterator[ast.Constant]:
    """The constants that something is compared with, or is asked to begin with."""
    asked: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        asked = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
        asked = node.args
    for one in asked:
        parts = one.elts if isinstance(one, ast.Tuple | ast.List | ast.Set) else [one]
        yield from (part for part in parts if isinstance(part, ast.Constant))


def oversized(sizes: dict[str, int], limit: int, excepted: dict[str, int]) -> list[str]:
    """What is too large or listed for nothing, as sentences."""
    grown = [
        f"{name}: {size} lines, at most {max(limit, excepted.get(name, 0))}; split it by subject"
        for name, size in sizes.items()
        if size > max(limit, excepted.get(name, 0))
    ]
    idle = [f"{name}: small enough now, take it off the list" for name in excepted if sizes.get(name, 0) <= limit]
    return grown + idle


def test_modules_are_small() -> None:
    sizes = {named(p): len(p.read_text().splitlines()) for p in sources()}

    assert oversized(sizes, MODULE_LINES_MAX, LARGE_MODULES) == []


def test_functions_are_small() -> None:
    sizes = {name: size for p in sources() for name, size in functions(p)}

    assert oversized(sizes, FUNCTION_LINES_MAX, LARGE_FUNCTIONS) == []


def test_nobody_but_the_table_of_a_backend_asks_for_its_scheme() -> None:
    """What differs between backends is declared where they are, or adding one means a search through all the others."""
    schemes = stores._BACKENDS.keys() | buses._BACKENDS.keys() | lock_stores._BACKENDS.keys()
    places = ("src/holdfast/stores/", "src/holdfast/buses/", "src/holdfast/locks/stores/", "src/holdfast/locks/guards/")
    guilty = [
        f"{named(p)}:{word.lineno}: {word.value!r}"
        for p in sources()
        if named(p).startswith("src/") and not named(p).startswith(places)
        if any(scheme in (text := p.read_text()) for scheme in schemes)  # to read is cheap, to parse is not
        for node in ast.walk(ast.parse(text))
        for word in compared(node)
        if isinstance(word.value, str) and word.value.rstrip(":/") in schemes
    ]

    assert guilty == []


def test_module_names_say_what_is_inside() -> None:
    vague = [
        named(p) for p in sources() if VAGUE & {part.strip("_") for part in p.relative_to(ROOT).with_suffix("").parts}
    ]

    assert vague == []


def test_lock_file_installs_from_anybody_s_registry() -> None:
    """Versions and hashes, but no address: not of an index, and not of the machine that made it."""
    lock = (ROOT / "requirements.lock").read_text()

    assert _ADDRESS.findall(lock) == []
    for line in lock.splitlines():
        assert re.match(r"#|    (#|--hash=sha256:)|[a-z0-9.-]+==\S+ ", line), line


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".lock", ".json", ".sql", ".lua", ""}
    guilty = [
        f"{named(p)}:{number}"
        for p in written_files()
        if p.suffix in suffixes
        for number, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if _MACHINE_PATH.search(line)
    ]

    assert guilty == []


def test_nobody_imports_what_another_package_keeps_for_itself() -> None:
    """Its next release may have it elsewhere, or not at all."""
    private = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src").rglob("*.py")
        for name in imported(ast.parse(path.read_text()))
        if not name.startswith("holdfast.") and any(re.match(r"_[a-z]", part) for part in name.split(".")[1:])
    ]

    assert private == []


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_threads_start_at_one_seam() -> None:
    """Elsewhere `Runtime.run_in_thread` starts them, so that a simulation can do without.

    The writer of SQLite blocks rather than runs a loop; it asks `Runtime.inline()` first.
    """
    seam = {"src/holdfast/locks/runtime.py", "src/holdfast/locks/stores/sqlite/writer.py"}
    starts = re.compile(r"\b(?:threading\.)?(?:Thread|Timer|ThreadPoolExecutor)\(|\bstart_new_thread\(")
    found = {named(p) for p in (ROOT / "src").rglob("*.py") if starts.search(p.read_text())}

    assert found <= seam


@pytest.mark.parametrize("module", ["holdfast.locks", "holdfast.cli"])
def test_importing_loads_no_backend(module: str) -> None:
    """A driver costs up to 0.7 s to import: only the URL that names it may load it."""
    assert BACKENDS & loaded_by(module) == set()


def test_importing_locks_loads_nothing_that_only_some_need() -> None:
    assert LATE & loaded_by("holdfast.locks") == set()


def loaded_by(module: str) -> set[str]:
    script = f"import sys, {module}; print(*sys.modules)"
    return {*subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()}
