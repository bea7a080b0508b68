"""What `pip install` brings: the wheel, and the page that an index shows of it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    made = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", made], cwd=ROOT, check=True)
    [file] = made.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def named(wheel: zipfile.ZipFile, end: str) -> bytes:
    [name] = [name for name in wheel.namelist() if name.endswith(f".dist-info/{end}")]
    return wheel.read(name)


def test_wheel_brings_every_file_of_the_tree_and_the_licence(wheel: zipfile.ZipFile) -> None:
    tree = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src/holdfast").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    pages = {f"holdfast/ops/runbooks_pages/{page.name}" for page in (ROOT / "docs/runbooks").glob("*.md")}

    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == tree | pages
    assert named(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_page_on_an_index_has_no_link_that_leads_nowhere(wheel: zipfile.ZipFile) -> None:
    _, _, page = named(wheel, "METADATA").decode().partition("\n\n")

    assert page.startswith("# Holdfast")
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
