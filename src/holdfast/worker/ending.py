"""How a handler ended, in the plane's words."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from holdfast.worker.errors import AttemptOver, EffectAbsent, EffectUnknown, Fatal, PlaneRefused
from holdfast.worker.wire import Done, to_value

MESSAGE_MAX = 2000
FRAMES_MAX = 50
TRACEBACK_MAX = 8000
_OURS = str(Path(__file__).parent)


def ended(result: Callable[[], Any]) -> Done:
    """What `result`, which returns or raises what the handler did, comes to."""
    try:
        value = result()
    except BaseException as error:  # noqa: BLE001  (a handler's SystemExit ends the handler, not its process)
        return _ended_by(error)
    try:
        return Done("succeeded", to_value(value))
    except PlaneRefused as refused:
        return failed("result-refused", str(refused), retryable=False)
    except Exception as error:  # noqa: BLE001  (what is encoded is the handler's, down to the fields of its objects)
        return failed("result-not-json", _words(error), retryable=False)


def ended_task(task: asyncio.Future[Callable[[], Any]]) -> Done:
    """As `ended`, of a task of `awaited` that is over."""
    if task.cancelled():
        return Done("cancelled")
    error = task.exception()
    return ended(task.result()) if error is None else _ended_by(error)


async def awaited(handler: Callable[[Any], Any], job: object) -> Callable[[], Any]:
    """For a task of the handler's own: what `ended` is given afterwards. A task that raises SystemExit ends the loop that it
    is in, and with it the process or the thread, before anybody could say how the handler ended."""
    try:
        value = await handler(job)
    except (SystemExit, KeyboardInterrupt) as error:
        return partial(raise_again, error)
    return lambda: value


def raise_again(error: BaseException) -> NoReturn:
    raise error


def _ended_by(error: BaseException) -> Done:
    match error:
        case BaseExceptionGroup():
            return _ended_by_all(error)
        case AttemptOver() | asyncio.CancelledError():
            return Done("cancelled")
        case EffectUnknown():
            return failed("effect-unknown", _words(error), retryable=False)
        case Fatal():
            return _raised(error, _code(error.__cause__ or error), retryable=False)
        case EffectAbsent():
            return _raised(error, _code(error.__cause__ or error))
        case _:
            return _raised(error, _code(error))


def _ended_by_all(group: BaseExceptionGroup[BaseException]) -> Done:
    """As by the weightiest of them: what a TaskGroup wraps must not be tried again for that."""
    each = list(_members(group))
    for weighty in (EffectUnknown, Fatal):
        for error in each:
            if isinstance(error, weighty):
                return _ended_by(error)
    if len(each) == 1 or all(isinstance(error, AttemptOver) for error in each):
        return _ended_by(each[0])
    words = "; ".join(f"{_code(error)}: {_words(error)}" for error in each)
    return failed(_code(group), f"{len(each)} errors: {words}", trace=_traceback(group))


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _members(error)
        else:
            yield error


def failed(code: str, message: str, *, retryable: bool = True, trace: str = "") -> Done:
    told = _sayable(message[:MESSAGE_MAX])
    return Done("failed", error={"code": code, "message": told}, retryable=retryable, traceback=_sayable(trace))


def _raised(error: BaseException, code: str, *, retryable: bool = True) -> Done:
    # Who raises Fatal, and has not caught anything before, has said all there is to say.
    is_said = isinstance(error, Fatal) and error.__cause__ is None
    return failed(code, told(error), retryable=retryable, trace="" if is_said else _traceback(error))


def _sayable(text: str) -> str:
    # A file name that is not UTF-8 leaves half characters in a message, which no JSON can carry.
    return text.encode("utf-8", "replace").decode()


def _code(error: BaseException) -> str:
    return type(error).__name__


def told(error: BaseException) -> str:
    """The message, and the line of the user's code that it came from."""
    not_theirs = (_OURS, "<frozen ")  # the machinery of imports is frozen
    places = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(not_theirs)]
    where = f" ({places[-1].filename.rpartition('/')[2]}:{places[-1].lineno})" if places else ""
    return (_words(error)[: MESSAGE_MAX - len(where)] + where).lstrip()


def _traceback(error: BaseException) -> str:
    """From the handler's first line on: what called it is the same each time, and ours."""
    first = error.__traceback__
    while first is not None and first.tb_next is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    lines = traceback.format_exception(type(error), error, first, limit=-FRAMES_MAX)
    return "".join(lines)[:TRACEBACK_MAX]


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an exception whose words fail is still how the handler ended)
        return "its message cannot be shown"
