"""What to look into, and in which order; and the screen that shows it."""

from __future__ import annotations

from holdfast.api import WorkerInfo
from holdfast.api.summary import Summary, WarningView
from holdfast.cli.top import screen
from holdfast.core.warnings import Signs, warnings


def test_nothing_is_said_of_a_plane_that_is_well() -> None:
    assert warnings(Signs(conditions={"ready": 3}, waiting_longest_s=0.2)) == []


def test_what_needs_somebody_comes_before_what_will_pass() -> None:
    signs = Signs(
        conditions={"stuck": 1, "silent": 2, "unable": 1},
        waiting_longest_s=60.0,
        waiting_longest="j1",
        effects_unknown=1,
        approvals_pending=2,
        frozen=["all"],
        loops_idle={"scheduler": 90.0},
        contended="holdfast:a",
        waiters=3,
    )

    found = warnings(signs)

    assert [one.code for one in found] == [
        "loop-late",
        "workers-stuck",
        "workers-unable",
        "effects-unknown",
        "frozen",
        "waiting-long",
        "workers-silent",
        "approvals-pending",
        "lock-contended",
    ]
    assert found[5].then == "holdfast why job j1"
    assert (found[1].summary, found[6].summary) == (
        "1 worker heartbeats and takes no work",
        "2 workers are not heard of",
    )


def summary(at: float, submitted: int, *, warned: bool = False) -> Summary:
    worker = WorkerInfo(
        id="w1\x1b[2J", name="w1", pool="default", topics=["*"], labels={}, slots=4, backlog=0, in_hand=2,
        draining=False, last_seen=at - 1, alive=True, condition="ready",
    )  # fmt: skip
    return Summary(
        at=at,
        states={"RUNNING": 2},
        topics={"mail": 2},
        waiting_longest_s=None,
        totals={"submitted": submitted},
        workers=[worker],
        locks_held=1,
        locks_contended=[],
        approvals_pending=0,
        effects_unknown=0,
        freezes=[],
        warnings=[WarningView(code="frozen", summary="all is frozen", next="holdfast freeze list")] if warned else [],
    )


def test_screen_shows_rates_since_the_last_one_and_loads() -> None:
    lines = screen(summary(110.0, 150), summary(100.0, 50))

    assert lines[0] == "nothing to worry about"
    assert any("submitted 10/s" in line for line in lines)
    assert any("##########.........." in line and "2/4" in line for line in lines)


def test_screen_shows_warnings_first() -> None:
    lines = screen(summary(1.0, 0, warned=True), None)

    assert lines[:2] == ["warnings", "  frozen: all is frozen   holdfast freeze list"]


def test_names_of_others_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(screen(summary(1.0, 0), None))
