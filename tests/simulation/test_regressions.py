"""What a seed once found stays mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.regressions import Regression, read_regressions
from simulation.running import STORIES, run


@pytest.mark.parametrize("story", STORIES)
def test_stories_that_once_broke_a_promise_keep_it(story: str) -> None:
    told = [(kept, run(story, kept.seed)) for kept in read_regressions() if kept.story == story]

    broken = [f"{kept.found}: {ending.violation}\n    {ending.replay}" for kept, ending in told if ending.violation]
    assert not broken, "\n".join(broken)


def test_entries_are_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text(
        '[[regression]]\nstory = "plane"\nseed = 17\nfound = "paid twice"\n'
        '[[regression]]\nstory = "lock"\nseed = 4\nfound = "two holders"\n'
    )

    assert read_regressions(file) == [Regression("plane", 17, "paid twice"), Regression("lock", 4, "two holders")]


@pytest.mark.parametrize(
    ("entry", "error"),
    [('story = "planes"\nseed = 1\nfound = "x"', ValueError), ('story = "plane"\nseed = 1', TypeError)],
)
def test_an_entry_that_cannot_be_told_is_an_error(tmp_path: Path, entry: str, error: type[Exception]) -> None:
    file = tmp_path / "regressions.toml"
    file.write_text(f"[[regression]]\n{entry}\n")

    with pytest.raises(error):
        read_regressions(file)
