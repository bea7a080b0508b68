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
        return failed("effect-unknown", str(error), retryable=False)
    except Fatal as error:
        return failed(_code(error.__cause__ or error), _told(error), retryable=False)
    except EffectAbsent as error:
        return failed(_code(error.__cause__ or error), _told(error))
    except BaseException as error:  # noqa: BLE001  (a handler's SystemExit ends the handler, not its process)
        return failed(_code(error), _told(error))
    try:
        return Done("succeeded", msgspec.json.encode(value))
    except TypeError as error:
        return failed("result-not-json", str(error), retryable=False)


def failed(code: str, message: str, *, retryable: bool = True) -> Done:
    return Done("failed", error={"code": code, "message": message[:MESSAGE_MAX]}, retryable=retryable)


def _code(error: BaseException) -> str:
    return type(error).__name__


def _told(error: BaseException) -> str:
    """The message, and the line of the handler's code that it came from."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" ({places[-1].filename.rpartition('/')[2]}:{places[-1].lineno})" if places else ""
    return str(error)[:MESSAGE_MAX] + where
