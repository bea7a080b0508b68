"""Jobs and their events."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import Labels, Name, Reply, Request, Session


class NewJob(Request, kw_only=True):
    """`POST /v1/jobs`, and each member of `POST /v1/jobs:batch`. Limits left out are the topic's."""

    topic: Name
    payload: Any = None
    labels: Labels = {}
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    risk: Annotated[str, Meta(pattern=r"^(low|medium|high)$(?!\n)")] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 0.0
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    """From now on: when it is no longer worth running."""
    session: Session = ""
    """Jobs of one session of a tenant are run one after the other."""
    session_policy: Annotated[str, Meta(pattern=r"^(enqueue|reject|interrupt|rollback)$(?!\n)")] = "enqueue"
    """What to do about those of the session that have not ended."""
    idempotency_key: Annotated[str, Meta(pattern=r"^[ -~]{1,255}$(?!\n)")] | None = None
    """In a batch; a single submission uses the header Idempotency-Key."""


class JobView(Reply, kw_only=True):
    id: str
    topic: str
    state: str
    payload: Any
    labels: dict[str, str]
    priority: int
    risk: str
    attempts: int
    max_attempts: int
    schedulings: int
    retries: dict[str, int]
    worker: str
    fence: int
    created_at: float
    since: float
    not_before: float
    deadline: float | None
    lease_until: float | None
    cancel_requested: bool
    progress: Any
    result: Any
    error: dict[str, Any] | None
    replay_of: str | None
    version: int
    actor: str = ""
    session: str = ""
    run: str = ""
    step: str = ""
    decision: dict[str, Any] | None = None
    """The policy's word on it; null where there is no policy."""
    approval: str = ""
    frozen: str = ""
    """The scope of the freeze that keeps it from being dispatched; empty if there is none, or if it was before."""


class JobPage(Reply, kw_only=True):
    items: list[JobView]
    next_cursor: str | None


class NewJobs(Request, kw_only=True):
    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=1000)]


class Submitted(Reply, kw_only=True):
    """One answer of a batch: `job` and `repeated`, or the `error` of this member alone."""

    job: JobView | None = None
    repeated: bool = False
    error: dict[str, Any] | None = None


class SubmittedJobs(Reply, kw_only=True):
    jobs: list[Submitted]


class CancelJob(Request, kw_only=True):
    reason: Annotated[str, Meta(max_length=500)] = ""


class EventView(Reply, kw_only=True):
    number: int
    job_id: str
    """Empty: it is not about one job."""
    run: str = ""
    kind: str
    state: str | None
    """The job's after it; null without a job."""
    attempt: int
    fence: int
    at: float
    detail: dict[str, Any]


class EventPage(Reply, kw_only=True):
    items: list[EventView]
    next_cursor: str | None
