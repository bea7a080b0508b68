"""The checker of histories: it finds an order where there is one, and says what does not fit where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.http1.answer import Reply
from simulation.job_history import Log
from simulation.linearizable import Operation, find_contradiction


def writes(value: int) -> Callable[[int], Iterator[int]]:
    return lambda _: iter([value])


def reads(value: int) -> Callable[[int], Iterator[int]]:
    return lambda now: iter([now] if now == value else [])


def test_operations_that_overlap_may_have_happened_in_either_order() -> None:
    history = [Operation("write 1", 1, 6, writes(1)), Operation("read 1", 2, 3, reads(1))]
    assert find_contradiction(history, 0) is None

    before = [Operation("write 1", 1, 2, writes(1)), Operation("read 0", 3, 4, reads(0))]
    assert find_contradiction(before, 0) == ["write 1", "and then not: read 0"]


def test_what_was_never_answered_may_happen_late_or_never_but_only_once() -> None:
    lost = Operation("write 1", 1, None, writes(1))
    late = [lost, Operation("read 0", 2, 3, reads(0)), Operation("read 1", 4, 5, reads(1))]
    assert find_contradiction(late, 0) is None
    assert find_contradiction([lost, Operation("read 0", 2, 3, reads(0))], 0) is None

    back = [*late, Operation("read 0 again", 6, 7, reads(0))]
    assert find_contradiction(back, 0) is not None


Saying = tuple[str, dict[str, Any], int, dict[str, Any]]
"""A path under /v1, what was said, the status and the body of the answer; status 0: none came."""


def submit() -> Saying:
    return "jobs", {}, 202, {"id": "j"}


def start(fence: int) -> Saying:
    return "work/claim", {"start": True}, 200, {"deliveries": [{"job_id": "j", "fence": fence}]}


def renew(fence: int, status: str = "ok", *, cancel: bool = False) -> Saying:
    standing = {"job_id": "j", "status": status, "cancel": cancel}
    return "work/renew", {"attempts": [{"job_id": "j", "fence": fence}]}, 200, {"attempts": [standing]}


def end(fence: int, outcome: str, status: int = 200) -> Saying:
    said = {"outcomes": [{"job_id": "j", "fence": fence, "outcome": outcome}]}
    reply = {"attempts": [{"status": "ok"}]} if status == 200 else {"code": "stale-fence"}
    return "work/complete", said, status, reply


def end_and_start(fence: int, outcome: str, after: int) -> Saying:
    """What follows comes with the answer."""
    path, said, status, reply = end(fence, outcome)
    return path, said, status, reply | {"deliveries": [{"job_id": "j", "fence": after}]}


def cancel(state: str, fence: int = 0, status: int = 200) -> Saying:
    return "jobs/j:cancel", {}, status, {"state": state, "fence": fence}


def judge(*sayings: Saying) -> bool:
    """Whether the history can be, said one after the other."""
    log = Log()
    for path, said, status, reply in sayings:
        asked = log.ask(f"/v1/{path}", json.dumps(said).encode(), "order-1" if path == "jobs" else "")
        if status:
            log.answer(asked, Reply(status, json.dumps(reply).encode()))
    try:
        log.check()
    except AssertionError as violation:
        if not str(violation).startswith("H1: no order explains"):
            raise
        return False
    return True


@pytest.mark.parametrize(
    "sayings",
    [
        [submit(), start(1), renew(1), end(1, "succeeded"), end(1, "succeeded")],
        [submit(), start(1), end(1, "failed"), start(2), end(1, "succeeded", 409), end(2, "succeeded")],
        [submit(), start(1), start(2), renew(1, "stale-fence"), renew(2)],
        [submit(), start(1), cancel("RUNNING", 1), renew(1, cancel=True), end(1, "cancelled"), cancel("CANCELLED")],
        [submit(), cancel("RUNNING", 1), start(1), end(1, "succeeded"), cancel("", status=409)],
        [submit(), start(1), end(1, "succeeded", 0), end(1, "succeeded")],
        [submit(), start(1), end(1, "succeeded", 0), start(2)],
        [submit(), start(1), cancel("", status=0), renew(1), renew(1, cancel=True)],
        [submit(), start(1), end_and_start(1, "failed", 2), end(2, "succeeded")],
    ],
)
def test_histories_that_can_be(sayings: list[Saying]) -> None:
    assert judge(*sayings) is True


def test_many_requests_without_an_answer_are_decided() -> None:
    """Whoever gets no answer asks again, ever again: that must not double the work each time."""
    unheard = [("jobs", {}, 0, {}), cancel("", status=0), end(1, "failed", 0)]

    assert judge(*unheard * 10, submit(), start(1), *unheard * 10, end(1, "failed"), renew(1, "stale-fence")) is True


@pytest.mark.parametrize(
    "sayings",
    [
        [start(1)],
        [submit(), start(1), end(1, "succeeded"), start(2)],
        [submit(), start(2), start(1)],
        [submit(), start(1), start(2), renew(1)],
        [submit(), start(1), renew(1, "stale-fence"), renew(1)],
        [submit(), start(1), start(2), end(1, "succeeded")],
        [submit(), start(1), end(1, "succeeded"), end(1, "succeeded", 409)],
        [submit(), cancel("CANCELLED"), start(1)],
        [submit(), start(1), cancel("RUNNING", 1), start(2)],
        [submit(), start(1), cancel("RUNNING", 1), renew(1)],
        [submit(), cancel("CANCELLED"), cancel("", status=409)],
        [submit(), start(1), renew(1, cancel=True)],
        [submit(), start(1), end_and_start(1, "succeeded", 2)],
        [submit(), start(1), end_and_start(1, "failed", 2), renew(1)],
    ],
)
def test_histories_that_cannot_be(sayings: list[Saying]) -> None:
    assert judge(*sayings) is False
