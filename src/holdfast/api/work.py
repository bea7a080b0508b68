"""Work: what a worker in any language says, and is told."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import Fence, JobRef, Label, Labels, Name, Reply, Request


class Hello(Request, kw_only=True):
    """`POST /v1/work/hello`: a worker introduces itself, at start and whenever it is told 404.

    `host`, `boot_id`, `pid` and `started_at` (of the process, by its kernel) prove to the plane
    which process this is: a worker with the same `name` on the same host whose predecessor's
    process is gone gets the predecessor's leases ended at once. `predecessor_dead` is the
    worker's word for that: it looked, and (boot_id, pid, started_at) no longer runs.

    `unable` is why the worker can begin nothing at the moment. What it has not started goes to others,
    and it gets nothing more until a hello without it.
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
    unable: Label = ""


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
    decision: dict[str, Any] | None = None
    """The policy's, and in `approval` who approved it, with their answer in `response` if one was asked for."""


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
    """`POST /v1/work/complete`: one or many. Repeating an outcome is answered like the first time.

    Up to `refill` jobs may come with the answer, started: what follows from these outcomes, mostly. Their leases
    are to be trusted from when this was sent. If the answer is lost, the next claim must say what the worker
    is `holding`, and must not be under way together with another refill.
    """

    worker: Name
    outcomes: Annotated[list[Outcome], Meta(min_length=1, max_length=1000)]
    refill: Annotated[int, Meta(ge=0, le=1000)] = 0


class Completed(Standings, kw_only=True):
    deliveries: list[DeliveryView] = []


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
