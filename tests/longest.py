"""Which tests take longest, and where they stand so that no core is idle at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol, TypeVar

LONGEST = (
    "tests/test_lint.py",
    "tests/crash/test_plane_kills.py",
    "tests/crash/test_run_kills.py",
    "tests/simulation/test_stories.py::test_promises_are_kept[plane",
    "tests/crash/test_real_processes.py::test_stopped_past_the_ttl",
    "tests/test_fleet_story.py",
    "tests/flow/test_schedules_loops.py::test_schedule_43",
    "tests/flow/test_runs.py::test_a_result_that_was_lost",
    "tests/flow/test_run_sessions.py::test_paused_run_keeps_its_session",
    "tests/flow/test_webhooks.py::test_each_try_has_the_same_id",
    "tests/flow/test_schedules_loops.py::test_schedule_63",
    "tests/flow/test_webhooks.py::test_receiver_that_is_gone",
    "tests/flow/test_tenants.py",
    "tests/simulation/test_stories.py::test_promises_are_kept[governed",
    "tests/simulation/test_stories.py::test_promises_are_kept[sessions",
    "tests/soak/test_herd.py",
    "tests/simulation/test_stories.py::test_promises_are_kept[lock",
    "tests/gateway/test_contract.py::test_answers_are_those_documented",
    "tests/soak/test_fleet.py",
    "tests/gateway/test_approval_race.py",
    "tests/plane/test_stores_agree.py",
    "tests/locks/test_redis_compat.py::test_redis_py_own_tests_pass",
    "tests/simulation/test_replay.py::test_same_seed_same_story",
    "tests/test_demo.py",
    "tests/test_story.py",
    "tests/crash/test_roles.py",
    "tests/drills",
    "tests/simulation/test_stories.py::test_promises_are_kept[redis",
    "tests/crash/test_power_cut.py",
    "tests/models/test_models.py::test_model_holds",
    "tests/test_refund.py",
    "tests/locks/test_redis_places.py",
    "tests/soak",
)
"""How their names begin, the longest first, as measured with `--durations`: more than five seconds on a busy machine. A name that is
missing costs nothing but some seconds at the end, and so does one that is here for nothing."""


class Test(Protocol):
    @property
    def nodeid(self) -> str: ...


AnyTest = TypeVar("AnyTest", bound=Test)


def dealt(tests: Sequence[AnyTest], workers: int) -> list[AnyTest]:
    """The same tests in the order in which the workers take them.

    Each worker is given as many as the others, next to each other, and those who have done theirs steal from the ends of
    the others' rows (`--dist worksteal`). So each row begins with its share of the long ones, and ends with short ones.
    """
    some = [test for test in tests if test.nodeid.startswith(LONGEST)]
    long = list(dict.fromkeys(test for name in LONGEST for test in some if test.nodeid.startswith(name)))
    known = set(long)
    short = iter([test for test in tests if test not in known])
    order: list[AnyTest] = []
    left = len(tests)
    for worker in range(workers):
        row = left // (workers - worker)
        left -= row
        mine = long[worker::workers]
        order += mine
        order += islice(short, max(row - len(mine), 0))
    return [*order, *short]
