"""What travels over HTTP, as types: one definition for gateway, client, worker and OpenAPI document.

Times are seconds since the epoch by the store's clock. Payloads, results and progress are JSON
values. A request with an unknown field is refused, so a misspelt option is told; in a reply one is
ignored, so a plane may be newer than those who ask it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}$(?!\n)")]
"""Topics, pools, worker ids, effect keys. (Python's `$` alone would let a newline end the name.)"""
Label = Annotated[str, Meta(max_length=256)]
Labels = Annotated[dict[Name, Label], Meta(max_length=32)]
Fence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
JobRef = Annotated[str, Meta(min_length=1, max_length=128)]


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class Reply(Struct, kw_only=True):
    pass


# -- jobs ------------------------------------------------------------------------------------------


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
    kind: str
    state: str
    attempt: int
    fence: int
    at: float
    detail: dict[str, Any]


class EventPage(Reply, kw_only=True):
    items: list[EventView]
    next_cursor: str | None


# -- work: what a worker in any language says ------------------------------------------------------


class Hello(Request, kw_only=True):
    """`POST /v1/work/hello`: a worker introduces itself, at start and whenever it is told 404.

    `host`, `boot_id`, `pid` and `started_at` (of the process, by its kernel) prove to the plane
    which process this is: a worker with the same `name` on the same host whose predecessor's
    process is gone gets the predecessor's leases ended at once. `predecessor_dead` is the
    worker's word for that: it looked, and (boot_id, pid, started_at) no longer runs.
    """

    worker: Name
    name: Name
    pool: Name = "default"
    topics: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(min_length=1, max_length=256)]
    labels: Labels = {}
    slots: Annotated[int, Meta(ge=1, le=10_000)]
    backlog: Annotated[int, Meta(ge=0, le=10_000)] = 0
    host: Label = ""
    boot_id: Label = ""
    pid: int = 0
    started_at: Label = ""
    predecessor_dead: list[Name] = []


class HelloReply(Reply, kw_only=True):
    heartbeat_s: float
    """Say something (claim, renew, beat) at least this often."""
    predecessors: list[str]
    """Of the same name and host, and still registered: look whether they are dead; if so, say it in another hello."""


class AttemptRef(Request, kw_only=True):
    job_id: JobRef
    fence: Fence


class Claim(Request, kw_only=True):
    """`POST /v1/work/claim`: deliveries for this worker; waits up to `wait_s` for the first one.

    With `start` they are started in the same step (RUNNING is the worker's word, and this is it);
    else each must be started before its work begins. A worker whose last claim got no answer says
    what it is `holding`: everything else that runs on it comes again, under the same fence and a
    fresh lease, and an older claim of its is served no more.
    """

    worker: Name
    holding: Annotated[list[AttemptRef], Meta(max_length=10_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    start: bool = False


class DeliveryView(Reply, kw_only=True):
    job_id: str
    fence: int
    topic: str
    payload: Any
    attempt: int
    max_attempts: int
    lease_s: float
    running_timeout_s: float
    labels: dict[str, str]
    risk: str
    trace: str


class Deliveries(Reply, kw_only=True):
    deliveries: list[DeliveryView]
    waited_s: float = 0.0
    """How long the plane had this claim before it began to count the leases: a worker may trust them from when it
    sent the claim plus this."""


class StartWork(Request, kw_only=True):
    worker: Name
    attempts: Annotated[list[AttemptRef], Meta(min_length=1, max_length=1000)]


class AttemptStanding(Reply, kw_only=True):
    """`status`: ok, or the problem's code: stale-fence, not-found. `cancel`: stop, a person asked."""

    job_id: str
    status: str
    cancel: bool = False
    current_fence: int | None = None


class Standings(Reply, kw_only=True):
    attempts: list[AttemptStanding]


class RenewWork(Request, kw_only=True):
    """`POST /v1/work/renew`: extends every lease named; also the worker's heartbeat. May name none."""

    worker: Name
    attempts: Annotated[list[AttemptRef], Meta(max_length=10_000)] = []


class Listen(Request, kw_only=True):
    """`POST /v1/work/listen`: waits up to `wait_s` for somebody to ask that one of the worker's jobs
    be stopped. `heard` are those it knows of. Also the worker's heartbeat."""

    worker: Name
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    heard: Annotated[list[AttemptRef], Meta(max_length=10_000)] = []


class Heard(Reply, kw_only=True):
    cancel: list[AttemptRef]


class Progress(Request, kw_only=True):
    worker: Name
    job_id: JobRef
    fence: Fence
    progress: Any


class Outcome(Request, kw_only=True):
    """How one attempt ended. `outcome`: succeeded, failed, cancelled, handed_back, timed_out."""

    job_id: JobRef
    fence: Fence
    outcome: Annotated[str, Meta(pattern=r"^(succeeded|failed|cancelled|handed_back|timed_out)$(?!\n)")]
    result: Any = None
    error: dict[str, Any] | None = None
    """For failed: `code`, `message`, and what else helps."""
    retryable: bool = True
    """For failed: whether another attempt may help."""


class CompleteWork(Request, kw_only=True):
    """`POST /v1/work/complete`: one or many. Repeating an outcome is answered like the first time."""

    worker: Name
    outcomes: Annotated[list[Outcome], Meta(min_length=1, max_length=1000)]


class PrepareEffect(Request, kw_only=True):
    """`POST /v1/work/effect/prepare`."""

    worker: Name
    job_id: JobRef
    fence: Fence
    key: Name
    idempotent: bool = False


class EffectRuling(Reply, kw_only=True):
    """`ruling`: run (with `idempotency_key`), remembered (with `result`), blocked."""

    ruling: str
    idempotency_key: str
    result: Any = None


class CommitEffect(Request, kw_only=True):
    """`POST /v1/work/effect/commit`."""

    worker: Name
    job_id: JobRef
    fence: Fence
    key: Name
    result: Any = None


class WithdrawEffect(Request, kw_only=True):
    """`POST /v1/work/effect/withdraw`."""

    worker: Name
    job_id: JobRef
    fence: Fence
    key: Name


class Goodbye(Request, kw_only=True):
    """`POST /v1/work/goodbye`: draining (give me nothing more), or gone."""

    worker: Name
    gone: bool = False


class Nothing(Reply, kw_only=True):
    pass


# -- looking around --------------------------------------------------------------------------------


class EffectView(Reply, kw_only=True):
    job_id: str
    key: str
    state: str
    fence: int
    attempt: int
    idempotency_key: str
    result: Any
    prepared_at: float
    settled_at: float | None
    note: str


class Effects(Reply, kw_only=True):
    items: list[EffectView]


class ResolveEffect(Request, kw_only=True):
    """`POST /v1/effects/{job}/{key}:resolve`: what a person found out. `state`: committed, absent."""

    state: Annotated[str, Meta(pattern=r"^(committed|absent)$(?!\n)")]
    result: Any = None
    reason: Annotated[str, Meta(min_length=1, max_length=500)]


class DeadLetterView(Reply, kw_only=True):
    number: int
    job_id: str
    topic: str
    reason: str
    at: float
    job: JobView
    events: list[EventView]
    replayed_as: str | None


class DeadLetterPage(Reply, kw_only=True):
    items: list[DeadLetterView]
    next_cursor: str | None


class WorkerInfo(Reply, kw_only=True):
    id: str
    name: str
    pool: str
    topics: list[str]
    labels: dict[str, str]
    slots: int
    backlog: int
    in_hand: int
    draining: bool
    last_seen: float
    alive: bool


class Workers(Reply, kw_only=True):
    items: list[WorkerInfo]
    snapshot_age_s: float | None
    snapshot_writer: str | None


class LockView(Reply, kw_only=True):
    key: str
    fence: int
    holder: str
    token_digest: str
    remaining_s: float
    waiters: int


class LocksPage(Reply, kw_only=True):
    items: list[LockView]
    next_cursor: str | None


class Problem(Reply, kw_only=True):
    """RFC 9457. `code` is stable; `type` is its page."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    instance: str = ""
    retryable: bool = False
    job_id: str | None = None
    current_fence: int | None = None


def json_value(raw: bytes | None) -> Any:
    """A stored JSON document as a value to answer with, without decoding it."""
    return None if raw is None else msgspec.Raw(raw)
