"""How what a handler raised is told: also where a TaskGroup has put it into a group."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.worker import EffectUnknown, Fatal, LeaseLost
from holdfast.worker.ending import ended
from holdfast.worker.wire import VALUE_BYTES_MAX, Done


async def ended_in_group(*errors: BaseException) -> Done:
    async def fail(error: BaseException) -> None:
        raise error

    async def handler() -> None:
        async with asyncio.TaskGroup() as group, asyncio.TaskGroup() as inner:
            for n, error in enumerate(errors):
                (inner if n else group).create_task(fail(error))

    task = asyncio.ensure_future(handler())
    await asyncio.wait([task])
    return ended(task.result)


async def test_error_in_a_task_group_is_told_as_itself() -> None:
    done = await ended_in_group(KeyError("no such customer"))

    assert done.error is not None
    assert (done.outcome, done.error["code"], done.retryable) == ("failed", "KeyError", True)
    assert done.error["message"].startswith("'no such customer' (test_ending.py:")


def test_error_without_words_is_told_by_its_line() -> None:
    def fail() -> None:
        raise MemoryError

    done = ended(fail)

    assert done.error is not None
    assert done.error["code"] == "MemoryError"
    assert done.error["message"].startswith("(test_ending.py:")


def test_result_that_no_plane_takes_does_not_leave_the_handlers_process() -> None:
    done = ended(lambda: "x" * VALUE_BYTES_MAX)

    assert done.error is not None
    assert (done.result, done.error["code"], done.retryable) == (b"null", "result-refused", False)


async def test_errors_in_a_task_group_are_all_told() -> None:
    done = await ended_in_group(KeyError("a"), ValueError("b"))

    assert done.error == {"code": "ExceptionGroup", "message": "2 errors: KeyError: 'a'; ValueError: b"}
    assert "KeyError" in done.traceback
    assert "ValueError" in done.traceback


@pytest.mark.parametrize("other", [[], [ValueError("b")]])
async def test_fatal_error_in_a_task_group_is_not_tried_again(other: list[Exception]) -> None:
    done = await ended_in_group(Fatal("never again"), *other)

    assert done.error is not None
    assert (done.error["code"], done.retryable) == ("Fatal", False)


@pytest.mark.parametrize("other", [[], [ValueError("b"), Fatal("c")]])
async def test_unknown_effect_in_a_task_group_waits_for_a_person(other: list[Exception]) -> None:
    done = await ended_in_group(EffectUnknown("pay"), *other)

    assert done.error is not None
    assert done.error["code"] == "effect-unknown"


async def test_attempt_that_is_over_in_a_task_group_is_cancelled() -> None:
    assert (await ended_in_group(LeaseLost("lost"), LeaseLost("lost"))).outcome == "cancelled"
