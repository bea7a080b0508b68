"""Every Python block of the documentation runs, as a script of its own; and those for newcomers one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import servers
from harness import make_backend
from plane.nats_buses import server_url as nats_url
from test_docs import _FENCE, PAGES, ROOT, named

EXAMPLE_S_MAX = 30
#: Addresses that examples use. The private server of the test run takes their place.
ADDRESSES = {
    "redis://127.0.0.1:6379/0": "redis",
    "postgresql://app@127.0.0.1/app": "postgres",
    "etcd://127.0.0.1:2379": "etcd",
    "nats://127.0.0.1:4222": "nats",
}

_NOT_RUN = re.compile(r"<!-- not run: \S.*? -->\s*\Z")


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


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: f"{named(example.page)}:{example.line}")
def test_example_runs(example: Example, running: dict[str, servers.Server | None], tmp_path: Path) -> None:
    text = example.script
    for address, backend in ADDRESSES.items():
        if address in text:
            is_bus = backend == "nats"
            text = text.replace(address, nats_url(running) if is_bus else make_backend(backend, running, tmp_path).url)
    run_script(text, folder=tmp_path)


def test_scripts_for_newcomers_run_in_one_folder_and_again(tmp_path: Path) -> None:
    """As somebody new runs them: the front page first, then the tutorials, and what was interesting once more."""
    wanted = [ROOT / "README.md", ROOT / "docs/tutorial/first-lock.md", ROOT / "docs/tutorial/first-job.md"]
    scripts = [example.script for page in wanted for example in examples() if example.page == page]
    assert len(scripts) > len(wanted)

    for script in [*scripts, *scripts]:
        run_script(script, folder=tmp_path)


def run_script(text: str, *, folder: Path) -> None:
    (folder / "example.py").write_text(text)

    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stderr
