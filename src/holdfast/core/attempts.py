"""The attempts of a job, told from its events: who had which, how each ended, and what came of it too late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

BEGUN = "job.started"
SENT = "job.dispatched"
REFUSED = frozenset({"attempt.refused", "effect.refused"})
_ENDS = {
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.retried": "failed",
    "job.parked": "parked",
    "job.handed_back": "handed-back",
    "job.lost": "lost",
    "job.requeued": "not-taken",
    "job.timed_out": "timed-out",
    "job.cancelled": "cancelled",
    "dispatch.rolled_back": "not-published",
}


class Told(Protocol):
    """An event, as far as it matters here."""

    @property
    def kind(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def at(self) -> float: ...
    @property
    def detail(self) -> dict[str, Any]: ...


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    fence: int
    worker: str
    sent_at: float
    began_at: float | None = None
    """None: it never began, and cost nothing."""
    ended_at: float | None = None
    ending: str = ""
    """succeeded, failed, parked, handed-back, lost, not-taken, timed-out, cancelled, not-published; empty: it lasts."""
    reason: str = ""
    """Why it was taken from its worker, or the code of its error."""
    refused: int = 0
    """Words of it that came too late and changed nothing."""
    refused_at: float | None = None
    """The last of them."""


def attempts_of(events: Iterable[Told]) -> list[Attempt]:
    """In the order of their fences."""
    known: dict[int, Attempt] = {}
    for event in events:
        if event.kind in REFUSED:
            late = known.get(event.detail.get("offered_fence", -1))
            if late is not None:
                known[late.fence] = replace(late, refused=late.refused + 1, refused_at=event.at)
        elif event.kind == SENT:
            worker = str(event.detail.get("worker", ""))
            known[event.fence] = Attempt(fence=event.fence, worker=worker, sent_at=event.at)
        elif event.fence in known:
            known[event.fence] = _moved(known[event.fence], event)
    return list(known.values())


def _moved(attempt: Attempt, event: Told) -> Attempt:
    if event.kind == BEGUN:
        return replace(attempt, began_at=event.at)
    if event.kind in _ENDS and not attempt.ending:
        return replace(attempt, ended_at=event.at, ending=_ENDS[event.kind], reason=_why(event.detail))
    return attempt


def _why(detail: dict[str, Any]) -> str:
    error = detail.get("error")
    if isinstance(error, dict):
        return str(error.get("code", ""))
    return str(detail.get("reason") or detail.get("code") or error or "")
