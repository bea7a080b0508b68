"""What the plane answered about one job, in an order that explains all of it. H1.

The job as those see it who talk to the plane: people and workers. What the plane does by itself (dispatch,
recovery) is not asked for by anybody, so it may have happened at any time, as far as these rules go; but an
attempt that was once refused is over for good, and so is a job that has ended or been cancelled.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.http1.answer import Reply
from simulation.linearizable import Operation, find_contradiction


@dataclass
class Asked:
    """One request, and its answer if there was one. `asked` and `answered` count all that was said in the story."""

    path: str
    body: bytes
    key: str
    asked: int
    answered: int | None = None
    reply: Reply | None = None


class Log:
    """Everything that is said to a plane in a story, and what it answers."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self._moments = 0

    def ask(self, path: str, body: bytes, key: str) -> Asked:
        self._moments += 1
        asked = Asked(path, body, key, self._moments)
        self.requests.append(asked)
        return asked

    def answer(self, asked: Asked, reply: Reply) -> None:
        self._moments += 1
        asked.answered, asked.reply = self._moments, reply

    def check(self) -> None:
        """Raises `AssertionError` naming a job whose answers contradict each other."""
        for job_id, operations in operations_by_job(self.requests).items():
            contradiction = find_contradiction(operations, NOTHING)
            assert contradiction is None, f"H1: no order explains what was said of {job_id}: {contradiction}"


class Known(NamedTuple):
    """A job, as far as answers tell."""

    exists: bool = False
    fence: int = 0
    """Of the newest attempt that anybody was given."""
    running: bool = False
    """That attempt may still be at work."""
    cancelled: bool = False
    end: str = ""
    said: frozenset[tuple[int, str]] = frozenset()
    """Outcomes that were accepted: they may be repeated."""


NOTHING = Known()
ENDS = {"succeeded": "SUCCEEDED", "cancelled": "CANCELLED", "timed_out": "TIMEOUT"}
Steps = Callable[[Known], Iterator[Known]]

# -- the rules -----------------------------------------------------------------------------------------


def submitted(job: Known) -> Iterator[Known]:
    yield job._replace(exists=True)


def started(fence: int) -> Steps:
    def step(job: Known) -> Iterator[Known]:
        if job.exists and not job.end:
            if job.running and fence == job.fence:
                yield job  # the answer to the first claim was lost
            elif fence > job.fence and not job.cancelled:
                yield job._replace(fence=fence, running=True)

    return step


def renewed(fence: int, *, cancel: bool) -> Steps:
    def step(job: Known) -> Iterator[Known]:
        if job.running and fence == job.fence and cancel == job.cancelled:
            yield job

    return step


def completed(fence: int, outcome: str, *, retryable: bool) -> Steps:
    def step(job: Known) -> Iterator[Known]:
        if (fence, outcome) in job.said:
            yield job
        elif job.running and fence == job.fence:
            after = job._replace(running=False, said=job.said | {(fence, outcome)})
            if outcome in ENDS:
                yield after._replace(end=ENDS[outcome])
                return
            if job.cancelled:
                yield after._replace(end="CANCELLED")
                return
            yield after
            if outcome == "failed" and not retryable:
                yield after._replace(end="FAILED")

    return step


def refused(fence: int, outcome: str = "") -> Steps:
    """A renewal, or an outcome. The plane has taken the attempt away, whenever that was."""

    def step(job: Known) -> Iterator[Known]:
        if (fence, outcome) not in job.said:
            yield job._replace(running=job.running and fence != job.fence)

    return step


def stopped(state: str, fence: int) -> Steps:
    """A cancel that was accepted: the job was ended, or the worker of this attempt is told."""

    def step(job: Known) -> Iterator[Known]:
        if state == "CANCELLED" and job.end in ("", "CANCELLED"):
            yield job._replace(cancelled=True, running=False, end="CANCELLED")
        elif state == "RUNNING" and not job.end and fence >= job.fence:
            # Perhaps an attempt of which its worker has not heard yet.
            yield job._replace(cancelled=True, running=True, fence=fence)

    return step


def not_stopped(job: Known) -> Iterator[Known]:
    if job.end != "CANCELLED":
        yield job


def perhaps_stopped(job: Known) -> Iterator[Known]:
    """A cancel without an answer, or the second arrival of one."""
    if not job.end:
        yield job._replace(cancelled=True)
        yield job._replace(cancelled=True, running=False, end="CANCELLED")


# -- from what was said to what it means -----------------------------------------------------------------


def operations_by_job(requests: Iterable[Asked]) -> dict[str, list[Operation]]:
    """By job, each in the order they were asked. What no answer names and nobody else knows of is left out."""
    requests = list(requests)
    jobs_of_keys = {r.key: _body(r)["id"] for r in requests if r.path == "/v1/jobs" and _is_ok(r)}
    found: dict[str, list[Operation]] = defaultdict(list)
    for request in requests:
        for job_id, what, steps, certain in _meaning(request, jobs_of_keys):
            answered = request.answered if certain else None
            found[job_id].append(Operation(f"{what}: {_told(request)}", request.asked, answered, steps))
    return found


Meaning = tuple[str, str, Steps, bool]
"""The job, in words, the rule, and whether it is certain that it was carried out by the time of the answer."""


def _meaning(request: Asked, jobs_of_keys: dict[str, str]) -> Iterator[Meaning]:
    match request.path.removeprefix("/v1/"):
        case "jobs":
            if request.key in jobs_of_keys:
                yield jobs_of_keys[request.key], "submit", submitted, _is_ok(request)
        case "work/claim":
            if _said(request).get("start", False):
                yield from _starts(request)
        case "work/renew":
            yield from _renewals(request)
        case "work/complete":
            yield from _outcomes(request)
            yield from _starts(request)  # what follows may come with the answer
        case path if path.endswith(":cancel"):
            yield from _cancels(request, path.removeprefix("jobs/").removesuffix(":cancel"))


def _starts(request: Asked) -> Iterator[Meaning]:
    for delivery in _body(request).get("deliveries", ()) if _is_ok(request) else ():
        yield delivery["job_id"], f"start under {delivery['fence']}", started(delivery["fence"]), True


def _renewals(request: Asked) -> Iterator[Meaning]:
    if not _is_ok(request):
        return  # it changes nothing that anybody could see
    for attempt, standing in zip(_said(request)["attempts"], _body(request)["attempts"], strict=True):
        fence = attempt["fence"]
        ok = standing["status"] == "ok"
        steps = renewed(fence, cancel=standing["cancel"]) if ok else refused(fence)
        yield attempt["job_id"], f"renew {fence} ({standing['status']}, cancel {standing['cancel']})", steps, True


def _outcomes(request: Asked) -> Iterator[Meaning]:
    outcomes: Sequence[dict[str, Any]] = _said(request)["outcomes"]
    standings: Sequence[dict[str, Any]] = ()
    if _is_ok(request):
        standings = _body(request)["attempts"]
    elif request.reply is not None and request.reply.status == 409:
        standings = [{"status": _body(request)["code"]}]
    for n, outcome in enumerate(outcomes):
        fence, end = outcome["fence"], outcome["outcome"]
        status = standings[n]["status"] if standings else "unknown"
        accepted = completed(fence, end, retryable=outcome.get("retryable", True))
        steps = refused(fence, end) if status not in ("ok", "unknown") else accepted
        yield outcome["job_id"], f"{end} under {fence} ({status})", steps, status != "unknown"


def _cancels(request: Asked, job_id: str) -> Iterator[Meaning]:
    if _is_ok(request):
        job = _body(request)
        yield job_id, f"cancel ({job['state']})", stopped(job["state"], job["fence"]), True
    elif request.reply is not None and request.reply.status == 409:
        yield job_id, "cancel (conflict)", not_stopped, True
    # The network may have delivered it twice, and then the second time is nobody's answer.
    yield job_id, "cancel, perhaps once more", perhaps_stopped, False


def _is_ok(request: Asked) -> bool:
    return request.reply is not None and request.reply.status < 300


def _body(request: Asked) -> Any:
    assert request.reply is not None
    return json.loads(request.reply.body)


def _said(request: Asked) -> Any:
    return json.loads(request.body)


def _told(request: Asked) -> str:
    return f"asked at {request.asked}, " + (
        f"answered {request.reply.status} at {request.answered}" if request.reply else "never answered"
    )
