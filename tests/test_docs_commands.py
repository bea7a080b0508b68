"""Every `holdfast …` that a page, or the demo, tells people to type is a command that exists, with options it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.cli import cli
from holdfast.cli.plane import _tell_what_to_try

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_SPAN = re.compile(r"`(holdfast [^`\n]+)`")
_LINE = re.compile(r"^(?:\$ |ExecStart=\S*/)?(holdfast .+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(?:bash|console|sh|ini)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def typed(text: str) -> Iterator[str]:
    """The commands of a page: in its code spans, and as lines of its shells and services."""
    yield from _SPAN.findall(text)
    for block in _BLOCK.findall(text):
        # Not what the command prints: "holdfast is up at …".
        yield from (line for line in _LINE.findall(block) if not line.startswith("holdfast is "))


def wrong(line: str) -> str | None:
    """What does not exist of a command as somebody would type it; None if all of it does."""
    line = re.split(r"\s{2,}#|\s&(?:\s|$)", line)[0]
    words = shlex.split(line.replace("…", ""), comments=True)[1:]
    command: click.Command = cli
    while words and isinstance(command, click.Group) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if isinstance(command, click.Group) and words and (":" in words[0] or words[0].endswith(".py")):
        command = command.commands["run"]  # `holdfast worker MODULE:WORKER`
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        return words[0]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    strangers = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return strangers[0] if strangers else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_a_page_exist(page: Path) -> None:
    assert {line: word for line in typed(page.read_text()) if (word := wrong(line)) is not None} == {}


def test_commands_of_the_demo_exist(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_what_to_try("http://127.0.0.1:1", {"anna": 1, "ben": 2})
    said = capsys.readouterr().err
    told = [line.split("   ")[0] for line in re.findall(r"^  (holdfast .+)$", said, re.MULTILINE)] + _SPAN.findall(said)

    assert len(told) >= 8
    assert {line: word for line in told if (word := wrong(line)) is not None} == {}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("holdfast job show ID", "show"),
        ("holdfast up --demos", "--demos"),
        ("holdfast worker a:b --slots 1 &", None),
        ("holdfast job submit sum --payload '[1, 2]' --wait   # durable", None),
    ],
)
def test_a_wrong_command_would_be_found(line: str, word: str | None) -> None:
    assert wrong(line) == word
