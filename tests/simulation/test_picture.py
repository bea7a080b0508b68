"""The picture of a story: a lane for every process, what each had and suffered, and the same story as without it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from simulation.picture import draw
from simulation.running import STORIES, Ending, run
from simulation.test_replay import python

SVG = "{http://www.w3.org/2000/svg}"
PROCESSES = {
    "lock": {"store", "resource", "c0", "c1", "probe"},
    "redis": {"store", "resource", "c0", "c1", "probe"},
    "plane": {"store", "bus", "plane0", "plane1", "worker0", "people"},
    "plane-redis": {"store", "bus", "plane0", "plane1", "worker0", "people"},
    "governed": {"store", "bus", "plane0", "plane1", "worker0", "worker1", "customers", "deciders"},
    "sessions": {"store", "bus", "plane0", "plane1", "worker0", "worker1", "customers"},
    "calm": {"store", "bus", "plane0", "plane1", "worker0", "people"},
    "calm-redis": {"store", "bus", "plane0", "plane1", "worker0", "people"},
}


def elements(picture: Path, kind: str) -> list[ET.Element]:
    return [element for element in ET.parse(picture).iter() if element.get("class") == kind]


@pytest.mark.parametrize("kind", STORIES)
def test_every_process_has_a_lane(tmp_path: Path, kind: str) -> None:
    draw(kind, 3, tmp_path / "story.svg")

    lanes = [lane.get("data-process") for lane in elements(tmp_path / "story.svg", "lane")]
    assert set(lanes) >= PROCESSES[kind]
    assert len(lanes) == len(set(lanes)), "one that was killed and started again keeps its lane"


@pytest.mark.parametrize("kind", STORIES)
def test_a_story_does_not_notice_that_it_is_drawn(tmp_path: Path, kind: str) -> None:
    for seed in range(3):
        assert draw(kind, seed, tmp_path / "story.svg").digest == run(kind, seed).digest


def test_leases_messages_and_faults_are_there(tmp_path: Path) -> None:
    """As many strikes as the story tells of, each on the lane of whom it struck."""
    strikes = ("pause ", "stall c", "kill ", "cut off ")
    ending = next(e for seed in range(100) if len(struck(e := draw("lock", seed, tmp_path / "s.svg"), strikes)) > 1)

    assert len(elements(tmp_path / "s.svg", "fault")) == len(struck(ending, strikes))
    told = [lease[0].text or "" for lease in elements(tmp_path / "s.svg", "lease")]
    assert told
    assert all("with fence" in words for words in told)
    assert any("acquire" in (message[0].text or "") for message in elements(tmp_path / "s.svg", "message"))


def struck(ending: Ending, strikes: tuple[str, ...]) -> list[str]:
    return [fault for fault in ending.faults if fault.startswith(strikes)]


def test_attempts_are_bands_of_their_workers(tmp_path: Path) -> None:
    draw("calm", 1, tmp_path / "story.svg")

    told = [attempt[0].text or "" for attempt in elements(tmp_path / "story.svg", "attempt")]
    assert told
    assert all(words.startswith(("worker0 has", "worker1 has")) for words in told)


def test_replay_draws_what_it_tells(tmp_path: Path) -> None:
    told = python("-m", "simulation", "replay", "lock", "3", "--picture", str(tmp_path / "story.svg"))

    assert told.returncode == 0, told.stderr
    assert ET.parse(tmp_path / "story.svg").getroot().tag == f"{SVG}svg"
