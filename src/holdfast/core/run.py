"""A run of a workflow and its steps, as they are kept: one record for the run, one for each step that has begun.

A step without a record has not been reached. What grows with the number of steps is nowhere in one
record: the run counts, a step that waits counts what it still waits for, and a step that fans out
counts its parts. So the end of one step reads and writes a handful of records, however many there are.
Queues and stacks are chains from record to record for the same reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record

LOOK_S = 300.0
"""A run that did nothing for so long is looked at: whatever it waits for may have ended unheard."""


HELD_S_MIN = 1.0
HELD_S_MAX = 30.0

NULL = Raw(b"null")
"""JSON for nothing, yet or at all."""


class RunState(StrEnum):
    QUEUED = "queued"
    """Runs of its session that came before it have not ended: nothing of it begins."""
    RUNNING = "running"
    PAUSED = "paused"
    """What has begun goes on; nothing else begins."""
    CANCELLING = "cancelling"
    """It will not succeed any more: what has begun is being stopped."""
    COMPENSATING = "compensating"
    """Nothing of it is at work any more but what undoes, step by step, what was done."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


RUN_TERMINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.TIMEOUT})


class StepState(StrEnum):
    WAITING = "waiting"
    """For other steps, or, as an item, for its turn."""
    READY = "ready"
    """It could begin, but the run is paused or at its limit."""
    RUNNING = "running"
    """Its job, its run or its message is under way; or its parts are."""
    ASKING = "asking"
    """For an approval."""
    DELAYED = "delayed"
    RETRYING = "retrying"
    """Between two attempts."""
    STOPPING = "stopping"
    """Its job or run was told to stop, and has not yet."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"
    """It had succeeded, and was undone."""


STEP_TERMINAL = frozenset(
    {StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED, StepState.COMPENSATED}
)


class Held(Struct, frozen=True, kw_only=True):
    """A limit that a run has met, or a turn that it waits for. It goes on by itself."""

    code: str
    message: str
    since: float

    def again(self, now: float) -> float:
        """When to look whether there is room by now, of a limit: soon at first, and more and more seldom."""
        return now + min(max(HELD_S_MIN, now - self.since), HELD_S_MAX)


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    tenant: Tenant
    workflow: str
    revision: int
    """Of the definition: a run keeps the one it began with."""
    state: RunState
    since: float
    created_at: float
    input: Raw
    """JSON, with the defaults of the schema."""
    output: Raw = NULL
    error: dict[str, Any] | None = None
    """`code`, `message`, and `step` where one is to blame."""
    ending: RunState | None = None
    """The terminal state that it is on its way to."""
    undoes: bool = False
    """Whether what was done is undone on that way."""
    deadline: float | None = None
    due: float | None = None
    actor: str = ""
    session: str = ""
    labels: dict[str, str] = {}
    parent_run: str = ""
    parent_step: str = ""
    """Of the run it is a step of; empty if none."""
    depth: int = 0
    """How many runs it is inside of."""
    generation: int = 0
    """How often it was run again from some step."""
    fence: int = 0
    """Of the run's lock at the last write: a lower one writes no more."""

    open: int = 0
    """Steps of the definition that have not ended."""
    active: int = 0
    """Jobs, runs and messages of its steps, and their parts, that have not ended."""
    order: int = 0
    """Grows with every step that ends."""
    head: str = ""
    tail: str = ""
    """First and last of the steps that are READY, each of which names its `next`."""
    undo: str = ""
    """The step that is to be undone first; it names the one before it."""
    held: Held | None = None
    """Why its READY steps wait, where that is its session or a limit of the tenant's."""
    undone_badly: int = 0
    """Compensations that failed: a person has to look."""

    version: int = 0
    """The record's when it was read; 0: there is none yet."""

    @property
    def is_terminal(self) -> bool:
        return self.state in RUN_TERMINAL


class Fan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far the parts of a step are."""

    total: int
    begun: int = 0
    """The first so many have had their turn."""
    done: int = 0
    succeeded: int = 0
    tolerated: int = 0
    """Failed, and `on_error: continue` lets that pass."""
    size: int = 0
    """Bytes of the outputs so far: whether they are too many to be gathered is known without reading them."""
    attempt: int = 0
    """The highest that a part had before the step was run again: no number is used twice."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    run: str
    tenant: Tenant
    name: str
    """`id`; `id[3]` and `id[branch]` for parts; either with `~undo` for what undoes it."""
    kind: str
    state: StepState
    since: float
    created_at: float
    attempt: int = 0
    """Of all that there ever were: part of the key under which work is ordered."""
    tries: int = 0
    """Attempts since it was last begun."""
    ref: str = ""
    """The job, approval, run or message that it waits for; the last one, when it has ended."""
    deadline: float | None = None
    wake: float | None = None
    """When a delay or the wait between two attempts is over."""
    output: Raw = NULL
    error: dict[str, Any] | None = None
    missing: int = 0
    """Dependencies that have not ended."""
    met: int = 0
    """Dependencies that have ended in a way that lets it go on."""
    case: str = ""
    """Which one a condition or a switch has taken."""
    item: Raw = NULL
    index: int = -1
    """Of the item; -1: it is none."""
    fan: Fan | None = None
    order: int = 0
    next: str = ""
    undo: str = ""
    version: int = 0

    @property
    def is_terminal(self) -> bool:
        return self.state in STEP_TERMINAL

    @property
    def outline(self) -> Step:
        """All but what may be large. A run has thousands of steps: to look at all of them must not cost their outputs."""
        return replace(self, output=NULL, item=NULL)

    @property
    def due(self) -> float | None:
        """When it is to be looked at, if nothing is heard of it."""
        if self.is_terminal or self.state is StepState.STOPPING:
            return None
        return min((time for time in (self.wake, self.deadline) if time is not None), default=None)


# -- as records -----------------------------------------------------------------------------------------


def run_record(run: Run) -> Record:
    """One version on. To be written where `run.version` still is."""
    return Record(
        kind=Kind.RUN,
        tenant=run.tenant,
        id=run.id,
        version=run.version + 1,
        state=run.state,
        parent=run.workflow,
        due=run.due,
        created_at=run.created_at,
        body=msgspec.json.encode(run),
    )


def run_of(record: Record) -> Run:
    return replace(msgspec.json.decode(record.body, type=Run), version=record.version)


def step_record(step: Step) -> Record:
    """One version on, as of a run."""
    return Record(
        kind=Kind.STEP,
        tenant=step.tenant,
        id=step_record_id(step.run, step.name),
        version=step.version + 1,
        state=step.state,
        parent=step.run,
        due=step.due,
        created_at=step.created_at,
        body=msgspec.json.encode(step),
    )


def step_of(record: Record) -> Step:
    return replace(msgspec.json.decode(record.body, type=Step), version=record.version)


def step_record_id(run: str, name: str) -> str:
    return f"{run}/{name}"
