"""What comes back: answers, errors as their classes, and whether to ask again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from holdfast import api, errors
from holdfast.client.asks import Ask, check_sendable, read_as
from holdfast.errors import HoldfastError, PlaneUnavailable
from holdfast.http1.answer import Reply, encoded
from holdfast.locks.runtime import Runtime

T = TypeVar("T")

PAUSES_S = (0.1, 0.4, 1.0)
"""Between the tries of what may be repeated."""
RETRY_AFTER_S_MAX = 5.0
"""A plane that asks for more patience than this is not asked again: the caller has better things to do."""
_BLANK = re.compile(r"[\s\x00-\x20\x7f]")
_OF_PATHS = "/%:@!$&'()*+,;="
EVENT_STREAM = "text/event-stream"
WHOLE_S = 60.0
"""For all of an answer, after the silence that its first byte may keep: one that comes in drops does not come for ever."""
KEEP_S = 3.0
"""How long an idle connection is used again. Less than a plane keeps it open: a request that meets a
connection just being closed may or may not have been obeyed."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Whom a client asks, and as whom."""

    scheme: str
    host: str
    port: int | None
    path: str
    """Before every path of the API: empty, unless a proxy serves the plane among others."""
    headers: Mapping[str, str]

    @classmethod
    def at(cls, url: str, *, api_key: str, tenant: str, actor: str) -> Self:
        headers = {"holdfast-tenant": tenant}
        if actor:
            headers["holdfast-actor"] = actor
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        check_sendable(headers)
        try:
            parts = urlsplit(url)
            if parts.scheme in {"http", "https"} and parts.hostname and not _BLANK.search(url):
                # As they are sent. What cannot be is an error of the same kind.
                host, path = parts.hostname.encode("idna").decode(), quote(parts.path.rstrip("/"), safe=_OF_PATHS)
                return cls(parts.scheme, host, parts.port, path, headers)
        except ValueError:
            pass
        raise errors.Invalid("the URL of the plane must look like http://127.0.0.1:7070")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def usual_port(self) -> int:
        return 443 if self.scheme == "https" else 80

    def encoded(self, ask: Ask[Any]) -> bytes:
        """The request, as it is sent. Raises `Invalid` for what cannot be."""
        return self._encoded(ask.method, ask.target(), ask.sent_headers(), ask.content())

    def encoded_look(self, target: str) -> bytes:
        return self._encoded("GET", target, {}, None)

    def _encoded(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        said = {"Host": self.authority, "Accept-Encoding": "identity", **self.headers, **headers}
        lines = "".join([f"{name}: {value}\r\n" for name, value in said.items()])
        return encoded(method, self.path + target, lines, body)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def whole_lines(text: bytes) -> tuple[list[str], bytes]:
    """The lines of a stream that have come to their end, and what is there of the next one."""
    *lines, rest = text.split(b"\n")
    return [line.decode().rstrip("\r") for line in lines], rest


def read(ask: Ask[T], reply: Reply, plane: Plane) -> T:
    """The answer. Raises the error that the reply stands for."""
    if reply.status >= 400:
        raise to_error(reply, plane, method=ask.method)
    try:
        return ask.read(reply.body)
    except msgspec.DecodeError as why:
        detail = f"does not answer like a plane ({why}); check the URL"
        raise PlaneUnavailable(str(plane), detail, applied=_perhaps(ask.method)) from why


def check_stream(content_type: str, plane: Plane) -> None:
    """Raises `PlaneUnavailable` if that is no stream of events: a proxy's page would be read again and again, for ever."""
    if not content_type.startswith(EVENT_STREAM):
        detail = f"does not answer like a plane ({content_type or 'nothing'}, not {EVENT_STREAM}); check the URL"
        raise PlaneUnavailable(str(plane), detail, applied=False)


def to_error(reply: Reply, plane: Plane, *, method: str = "GET") -> HoldfastError:
    """The error that a reply of 400 and above stands for."""
    try:
        told = read_as(api.Problem)(reply.body)
    except msgspec.DecodeError:
        if reply.status in {502, 503, 504}:
            # Not from a plane: a proxy's page, which says that there is none behind it now.
            return PlaneUnavailable(str(plane), reply.reason, applied=_perhaps(method))
        told = api.Problem(type="", title="", status=reply.status, code="", detail=reply.reason)
    return error(told, reply.retry_after)


def error(told: api.Problem, retry_after: str = "") -> HoldfastError:
    """The error that a problem tells of."""
    known = _CLASSES.get(told.code) or (errors.Invalid if 400 <= told.status < 500 else HoldfastError)
    # Past the class's own constructor: its sentence is already in the problem.
    made = known.__new__(known, told.detail)
    made.args = (told.detail or told.title,)
    values = {"status": told.status, "code": told.code or known.code, "retryable": told.retryable}
    values |= {"job_id": told.job_id, "current_fence": told.current_fence, "applied": None}
    values |= {"decided_by": told.decided_by, "decision": told.decision, "decided_at": told.decided_at}
    values["retry_after_s"] = float(retry_after) if retry_after.isdecimal() else 0.0
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _classes(root: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


_CLASSES = {known.code: known for known in _classes(HoldfastError) if known.__module__ == errors.__name__}


def unreachable(plane: Plane, why: Exception, *, sent: bool = True, method: str = "GET") -> PlaneUnavailable:
    applied = _perhaps(method) if sent else False
    return PlaneUnavailable(str(plane), str(why) or type(why).__name__, applied=applied)


def _perhaps(method: str) -> bool | None:
    """Whether something without an answer was done is not known; but who has only read has done nothing."""
    return False if method == "GET" else None


class Tries:
    """The tries of one request."""

    def __init__(self, ask: Ask[Any], runtime: Runtime) -> None:
        self._repeatable = ask.repeatable
        self.until = runtime.now() + ask.within_s
        self._runtime = runtime
        self._pauses_s = iter(PAUSES_S)

    def pause_after(self, error: HoldfastError) -> float:
        """How long to wait before the next try. Raises the error if there is to be none."""
        never_sent = isinstance(error, PlaneUnavailable) and error.applied is False
        pause_s = next(self._pauses_s, None)
        told_s: float = getattr(error, "retry_after_s", 0.0)
        if pause_s is None or told_s > RETRY_AFTER_S_MAX or not (never_sent or (self._repeatable and error.retryable)):
            raise error
        pause_s = max(self._runtime.jitter(pause_s), told_s)
        if self._runtime.now() + pause_s >= self.until:
            raise error
        return pause_s
