"""What must be known to say why something is as it is: values, read by `flow.explain`, judged by `core.why_*`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from holdfast.core.approval import Approval
from holdfast.core.attempts import Attempt
from holdfast.core.effect import Effect
from holdfast.core.freeze import Freeze
from holdfast.core.job import Job, Tenant
from holdfast.core.placement import WorkerView
from holdfast.core.run import Run, Step
from holdfast.core.share import Active, Quota
from holdfast.core.topic import Topic
from holdfast.core.why import Finding
from holdfast.locks.policy import LockClass
from holdfast.locks.port import Holder, Ownership

TAKEN_WITHIN_S = 10.0
"""A worker that lives asks for its deliveries at once: what it has not taken for so long, it does not take."""


class Ahead(Struct, frozen=True, kw_only=True):
    """What would be dispatched before the job. Of other tenants it tells no more than how much there is."""

    jobs: int
    own: int
    """Of the job's own tenant."""
    urgent: int
    """Of a higher priority."""
    more: bool = False
    """There are more than were counted."""


class JobFacts(Struct, frozen=True, kw_only=True):
    """Everything that may bear on one job, read within a moment."""

    job: Job
    topic: Topic
    now: float
    alive_since: float
    """A worker that was last seen before is silent."""
    workers: Sequence[WorkerView] = ()
    attempts: Sequence[Attempt] = ()
    last_kind: str = ""
    """Of the last event that moved it."""
    last_code: str = ""
    """And what that event says was the reason."""
    approval: Approval | None = None
    effects: Sequence[Effect] = ()
    """Those that await a person."""
    session: Sequence[Job] = ()
    """The live jobs of its session."""
    active: Active = field(default_factory=dict)
    quota: Quota = field(default_factory=Quota)
    freeze: Freeze | None = None
    """The one that keeps it from being dispatched."""
    ahead: Ahead | None = None
    """None: it is not in the line of what may be dispatched now."""
    lock: Holder | None = None
    """Who is dispatching it now."""
    in_hand: Sequence[Job] = ()
    """What its worker has, by the plane's books."""
    is_claiming: bool = False
    """Its worker waits for deliveries at this very moment."""
    dead_letter: int | None = None
    replayed_as: str | None = None

    @property
    def worker(self) -> WorkerView | None:
        return next((view for view in self.workers if view.id == self.job.worker), None)


class StepFacts(Struct, frozen=True, kw_only=True):
    step: Step
    cause: Finding | None = None
    """The first finding about the job, run or approval that it waits for."""


class RunFacts(Struct, frozen=True, kw_only=True):
    run: Run
    now: float
    steps: Sequence[StepFacts] = ()
    """Those that have not ended, and not those that wait for others."""
    max_parallel: int | None = None
    unheard_since: float | None = None
    """Something that it waits for has ended since then, and nobody has told it."""
    ahead: Sequence[str] = ()
    """Runs of its session that come first, the next to end before all others."""
    ahead_cause: Finding | None = None
    """Why the first of them is where it is."""
    paused_by: str = ""
    pause_reason: str = ""
    lock: Holder | None = None
    is_holder_gone: bool = False


class LockFacts(Struct, frozen=True, kw_only=True):
    key: str
    lock_class: LockClass
    now: float
    holder: Holder | None
    history: Sequence[Ownership] = ()
    """Oldest first."""
    is_holder_gone: bool = False
    """Its process is known to run no more."""


class ApprovalFacts(Struct, frozen=True, kw_only=True):
    approval: Approval
    now: float
    job: Job | None = None
    cause: Finding | None = None
    """The first finding about the job that may be dispatched on it."""


class WorkerFacts(Struct, frozen=True, kw_only=True):
    worker: WorkerView
    tenant: Tenant
    """Whoever asks: a worker works for all of them, and jobs of the others are counted, not named."""
    now: float
    alive_since: float
    in_hand: Sequence[Job] = ()
    waiting: Sequence[Job] = ()
    """Jobs that may be dispatched now, to anybody."""
    is_claiming: bool = False
