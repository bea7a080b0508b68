"""How a handler ended, in the plane's words."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.worker.errors import AttemptOver, EffectAbsent, EffectUnknown, Fatal
from holdfast.worker.wire import Done

MESSAGE_MAX = 2000


def ended(result: Callable[[], Any]) -> Done:
    """What `result`, which returns or raises what the handler did, comes to."""
    try:
        value = result()
    except (AttemptOver, asyncio.CancelledError):
        return Done("cancelled")
    except EffectUnknown as error:
        return failed("effect-unknown", _words(error), retryable=False)
    except Fatal as error:
        return failed(_code(error.__cause__ or error), _told(error), retryable=False)
    except EffectAbsent as error:
        return failed(_code(error.__cause__ or error), _told(error))
    except BaseException as error:  # noqa: BLE001  (a handler's SystemExit ends the handler, not its process)
        return failed(_code(error), _told(error))
    try:
        return Done("succeeded", msgspec.json.encode(value))
    except Exception as error:  # noqa: BLE001  (what is encoded is the handler's, down to the fields of its objects)
        return failed("result-not-json", _words(error), retryable=False)


def failed(code: str, message: str, *, retryable: bool = True) -> Done:
    # A file name that is not UTF-8 leaves half characters in a message, which no JSON can carry.
    told = message[:MESSAGE_MAX].encode("utf-8", "replace").decode()
    return Done("failed", error={"code": code, "message": told}, retryable=retryable)


def _code(error: BaseException) -> str:
    return type(error).__name__


def _told(error: BaseException) -> str:
    """The message, and the line of the handler's code that it came from."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" ({places[-1].filename.rpartition('/')[2]}:{places[-1].lineno})" if places else ""
    return _words(error)[:MESSAGE_MAX] + where


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an exception whose words fail is still how the handler ended)
        return "its message cannot be shown"
