"""Runbooks: a page per alert and per lock of the plane, read from the package or from the source tree.

A page has the sections symptom, evidence, decision, command and verification. Its commands are lines that begin
with `$` in console blocks; words in capitals stand for what the person on call has found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PACKAGED = Path(__file__).with_name("runbooks_pages")
"""Where an installed package has them; pyproject.toml puts them there."""
SOURCE = Path(__file__).parents[3] / "docs" / "runbooks"
_ALERT = re.compile(r"Alert `(Holdfast\w+)`")
PLACES = ("APPROVAL", "EFFECT", "FENCE", "JOB", "KEY", "NUMBER", "TOPIC", "VERSION", "WORKER")
"""Words that stand for something the person on call has found."""
_PLACE = re.compile(rf"\b(?:{'|'.join(PLACES)})\b")
_HEADING = re.compile(r"^## (\w+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Section(StrEnum):
    SYMPTOM = "Symptom"
    EVIDENCE = "Evidence"
    DECISION = "Decision"
    COMMAND = "Command"
    VERIFICATION = "Verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    name: str
    title: str
    alert: str
    """Empty: of a lock, which has no alert of its own."""
    summary: str
    sections: dict[Section, str]

    def commands(self, section: Section) -> list[str]:
        """What the section tells to type, in order."""
        blocks = "".join(_BLOCK.findall(self.sections[section]))
        return [line[2:] for line in blocks.splitlines() if line.startswith("$ ")]


def folder() -> Path:
    return PACKAGED if PACKAGED.is_dir() else SOURCE


def list_runbooks() -> list[Runbook]:
    return [read(path) for path in sorted(folder().glob("*.md")) if path.stem != "index"]


def find_runbook(wanted: str) -> Runbook | None:
    """By the name of its page or of its alert, with or without the `Holdfast` in front."""
    plain = wanted.removeprefix("Holdfast").lower().replace("-", "")
    for runbook in list_runbooks():
        if plain == runbook.name.replace("-", ""):
            return runbook
    return None


def read(path: Path) -> Runbook:
    text = path.read_text(encoding="utf-8")
    opening, *parts = _HEADING.split(text)
    title, _, summary = opening.strip().partition("\n")
    alert = _ALERT.search(summary)
    sections = {Section(heading): words.strip() for heading, words in zip(parts[::2], parts[1::2], strict=True)}
    return Runbook(
        name=path.stem,
        title=title.removeprefix("# "),
        alert=alert[1] if alert else "",
        summary=summary.strip(),
        sections=sections,
    )


def places(command: str) -> list[str]:
    """What a person must put in: `JOB`, `WORKER`, `KEY`."""
    return _PLACE.findall(command)


def filled(command: str, values: dict[str, str]) -> str:
    return _PLACE.sub(lambda place: values.get(place[0], place[0]), command)
