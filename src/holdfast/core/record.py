"""Records: what the plane keeps besides jobs, all in one shape, so that a store needs few verbs.

Each kind has a module of its own in `core/` that says what its `body` means and which states it
has; a store looks at none of that. A record is replaced as a whole, by its version, mostly in one
transaction with the jobs it is about.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.job import Tenant


class Kind(StrEnum):
    POLICY = "policy"
    """A version of the rules; `core.policy`."""
    APPROVAL = "approval"
    """Whether one job, or one step of a run, may go on; `core.approval`. Its parent is the job or the run."""
    WORKFLOW = "workflow"
    """A version of a definition; `core.workflow`. Its parent is the workflow's name."""
    RUN = "run"
    """One run of a workflow; `core.run`. Its parent is the workflow's name."""
    STEP = "step"
    """A step of a run, or one item of a step that fans out; `core.run`. Its parent is the run."""
    RESULT = "result"
    """Something that a run waits for has ended, and the run does not know yet. Its parent is the run, its
    id that of what has ended, its state says what that is; `core.run_result`. Due at once. Of a job it is
    written by the store, together with the job's last change."""
    KEY = "key"
    """An idempotency key that a run was started with. Its parent is the run."""
    SESSION = "session"
    """The runs of a session that have not ended, in the order they came; `core.run_session`. Its parent is the
    newest of them, or the one that ended last."""
    SCHEDULE = "schedule"
    """When something is to be submitted again and again; `core.schedule`."""
    WEBHOOK = "webhook"
    """Where to tell whom about what; `core.webhook`."""
    POST = "post"
    """One message to a webhook, until it has arrived; `core.webhook`. Its parent is the webhook."""
    PRESENCE = "presence"
    """A process of the plane that runs, and the workers that speak to it; `core.presence`. Due when it has been
    silent for so long that it is forgotten."""
    FREEZE = "freeze"
    """What is not dispatched for a while; `core.freeze`. Its id is its scope."""
    CELL = "cell"
    """A cell of the policy matrix that somebody has set; `core.matrix`. Its id says what it is about."""
    RATE = "rate"
    """How often something was submitted under a rate of the policy; `core.rate`. Due when it may be forgotten."""
    RENEWALS = "renewals"
    """What became of one process's renewals in one hour; `core.renewals`."""
    INCIDENT = "incident"
    """What was seen, said and done while something was wrong; `core.incident`."""
    AUDIT = "audit"
    """One change that somebody made, for ever; `core.audit`. Its state is what was done, its parent what to."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    tenant: Tenant
    id: str
    """Unique within kind and tenant. Lists are in its order."""
    version: int = 1
    """1 when it is new, or `first_version`; every write names the version it replaces."""
    state: str = ""
    """A word of its kind, for lists."""
    parent: str = ""
    due: float | None = None
    """When a service is to look at it; None: never, by itself."""
    created_at: float
    body: bytes
    """JSON."""


def first_version(now: float) -> int:
    """Of what somebody may remove and make anew under the same name: one that the old one never had. Else whoever has read
    that one, and was held up, would replace or remove this one in its stead."""
    return int(now * 1_000_000)


ENDED: dict[Kind, frozenset[str]] = {
    Kind.RUN: frozenset({"succeeded", "failed", "cancelled", "timeout"}),
    Kind.APPROVAL: frozenset({"approved", "rejected", "expired", "superseded", "consumed"}),
    Kind.POST: frozenset({"delivered", "failed"}),
}
"""The states in which nothing more is to come of a record: retention may take it."""

OF_A_RUN = (Kind.STEP, Kind.APPROVAL, Kind.RESULT, Kind.KEY, Kind.SESSION)
"""Kinds whose parent may be a run. They go with it."""
