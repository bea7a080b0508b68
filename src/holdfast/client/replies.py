"""What comes back: answers, errors as their classes, and whether to ask again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx2
import msgspec

from holdfast import api, errors
from holdfast.client.asks import ANSWER_S, Ask
from holdfast.errors import HoldfastError, PlaneUnavailable

T = TypeVar("T")

PAUSES_S = (0.1, 0.4, 1.0)
"""Between the tries of what may be repeated."""
RETRY_AFTER_S_MAX = 5.0
"""A plane that asks for more patience than this is not asked again: the caller has better things to do."""
KEEP_S = 3.0
"""How long an idle connection is used again. Less than a plane keeps it open: a request that meets a
connection just being closed may or may not have been obeyed."""


def options(url: str, api_key: str, tenant: str, actor: str) -> dict[str, Any]:
    """What both kinds of httpx client are made with."""
    headers = {"holdfast-tenant": tenant}
    if actor:
        headers["holdfast-actor"] = actor
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    limits = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEEP_S)
    # A plane is a neighbour: the environment's proxies are for the world outside.
    # Without TLS there is nothing to verify, and reading the certificates takes longer than most requests.
    verify = not url.startswith("http://")
    return {
        "base_url": url, "headers": headers, "timeout": ANSWER_S, "limits": limits, "trust_env": False, "verify": verify,
    }  # fmt: skip


def read(ask: Ask[T], response: httpx2.Response) -> T:
    """The answer. Raises the error that the response stands for."""
    if response.status_code >= 400:
        raise to_error(response)
    try:
        return ask.read(response.content)
    except msgspec.DecodeError as why:
        detail = f"does not answer like a plane ({why}); check the URL"
        raise PlaneUnavailable(_address(response.url), detail, applied=_perhaps(ask.method)) from why


def to_error(response: httpx2.Response) -> HoldfastError:
    """The error that a response of 400 and above stands for."""
    try:
        told = msgspec.json.decode(response.content, type=api.Problem)
    except msgspec.DecodeError:
        if response.status_code in {502, 503, 504}:
            # Not from a plane: a proxy's page, which says that there is none behind it now.
            applied = _perhaps(response.request.method)
            return PlaneUnavailable(_address(response.url), response.reason_phrase, applied=applied)
        told = api.Problem(type="", title="", status=response.status_code, code="", detail=response.reason_phrase)
    return _error(told, response.headers.get("retry-after", ""))


def _error(told: api.Problem, retry_after: str) -> HoldfastError:
    known = _CLASSES.get(told.code) or (errors.Invalid if 400 <= told.status < 500 else HoldfastError)
    # Past the class's own constructor: its sentence is already in the problem.
    error = known.__new__(known, told.detail)
    error.args = (told.detail or told.title,)
    values = {"status": told.status, "code": told.code or known.code, "retryable": told.retryable}
    values |= {"job_id": told.job_id, "current_fence": told.current_fence, "applied": None}
    values |= {"decided_by": told.decided_by, "decision": told.decision, "decided_at": told.decided_at}
    values["retry_after_s"] = float(retry_after) if retry_after.isdecimal() else 0.0
    for name, value in values.items():
        setattr(error, name, value)
    return error


def _classes(root: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


_CLASSES = {known.code: known for known in _classes(HoldfastError) if known.__module__ == errors.__name__}


def unreachable(url: httpx2.URL, error: httpx2.TransportError, *, method: str = "GET") -> PlaneUnavailable:
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    applied = False if never_sent else _perhaps(method)
    return PlaneUnavailable(_address(url), str(error) or type(error).__name__, applied=applied)


def _perhaps(method: str) -> bool | None:
    """Whether something without an answer was done is not known; but who has only read has done nothing."""
    return False if method == "GET" else None


def _address(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


class Tries:
    """The tries of one request."""

    def __init__(self, *, repeatable: bool, jitter: Callable[[float], float]) -> None:
        self._repeatable = repeatable
        self._jitter = jitter
        self._pauses_s = iter(PAUSES_S)

    def pause_after(self, error: HoldfastError) -> float:
        """How long to wait before the next try. Raises the error if there is to be none."""
        never_sent = isinstance(error, PlaneUnavailable) and error.applied is False
        pause_s = next(self._pauses_s, None)
        told_s: float = getattr(error, "retry_after_s", 0.0)
        if pause_s is None or told_s > RETRY_AFTER_S_MAX or not (never_sent or (self._repeatable and error.retryable)):
            raise error
        return max(self._jitter(pause_s), told_s)
