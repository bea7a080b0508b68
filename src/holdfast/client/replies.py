"""What comes back: errors as their classes, event streams as events, and when to ask again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import httpx2
import msgspec

from holdfast import api, errors
from holdfast.client.asks import ANSWER_S, Ask
from holdfast.core.job import TERMINAL
from holdfast.errors import HoldfastError, PlaneUnavailable

T = TypeVar("T")

SILENCE_S = 40.0
"""An event stream says something at least every 15 s; after this it is taken for dead."""
PAUSES_S = (0.1, 0.4, 1.0)
"""Between the tries of what may be repeated."""


def to_error(response: httpx2.Response) -> HoldfastError:
    """The error that a response of 400 and above stands for."""
    try:
        told = msgspec.json.decode(response.content, type=api.Problem)
    except msgspec.DecodeError:
        # Not from a plane, or not from one alone: a proxy's page.
        told = api.Problem(type="", title="", status=response.status_code, code="", detail=response.reason_phrase)
    return _error(told, response.headers.get("retry-after", ""))


def _error(told: api.Problem, retry_after: str) -> HoldfastError:
    known = _CLASSES.get(told.code) or (errors.Invalid if 400 <= told.status < 500 else HoldfastError)
    # Past the class's own constructor: its sentence is already in the problem.
    error = known.__new__(known, told.detail)
    error.args = (told.detail or told.title,)
    values = {"status": told.status, "code": told.code or known.code, "retryable": told.retryable}
    values |= {"job_id": told.job_id, "current_fence": told.current_fence, "applied": None}
    values["retry_after_s"] = float(retry_after) if retry_after.isdigit() else 1.0
    for name, value in values.items():
        setattr(error, name, value)
    return error


def _classes(root: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


_CLASSES = {known.code: known for known in _classes(HoldfastError) if known.__module__ == errors.__name__}


def unreachable(url: httpx2.URL, error: httpx2.TransportError) -> PlaneUnavailable:
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    address = f"{url.scheme}://{url.host}:{url.port or 80}"
    return PlaneUnavailable(address, str(error) or type(error).__name__, applied=False if never_sent else None)


def worth_repeating(ask: Ask[T], error: HoldfastError) -> bool:
    if isinstance(error, PlaneUnavailable) and error.applied is False:
        return True
    return ask.repeatable and error.retryable


class Watching:
    """A subscription's place in the stream of events, kept over reconnections."""

    def __init__(self, job_id: str | None, kinds: Sequence[str], after: int | None) -> None:
        self._job_id = job_id
        self._kinds = kinds
        # A job's history is short and wanted whole; everybody's begins now.
        self._after = 0 if after is None and job_id is not None else after
        self._event = ""
        self.ended = False

    def query(self) -> httpx2.QueryParams:
        given = [("job", self._job_id), ("after", self._after), *(("kind", kind) for kind in self._kinds)]
        return httpx2.QueryParams([(name, value) for name, value in given if value is not None])

    def hear(self, line: str) -> api.EventView | None:
        """One line of the stream; the event that it completes, if it does."""
        name, _, value = line.partition(": ")
        if name == "event":
            self._event = value
        if name != "data":
            return None
        if self._event == "gap":
            self._event = ""
            self._after = msgspec.json.decode(value, type=dict[str, Any])["resume_after"]
            return None
        event = msgspec.json.decode(value, type=api.EventView)
        self._after = event.number
        self.ended = self._job_id is not None and event.state in TERMINAL
        return event


def options(url: str, api_key: str, tenant: str) -> dict[str, Any]:
    headers = {"holdfast-tenant": tenant}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    # A plane is a neighbour: the environment's proxies are for the world outside.
    return {"base_url": url, "headers": headers, "timeout": ANSWER_S, "trust_env": False}
