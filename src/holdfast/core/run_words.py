"""What a run hears (happenings), what it wants done (commands), and what `advance` answers with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from holdfast.core.decision import Choice
from holdfast.core.job import Tenant
from holdfast.core.run import Run, RunState, Step
from holdfast.core.states import Risk, State

# -- happenings: each names what ended, so that an echo of an earlier attempt is known for one -----------


class JobEnded(NamedTuple):
    step: str
    job: str
    state: State
    output: bytes | None = None
    error: dict[str, Any] | None = None


class ApprovalDecided(NamedTuple):
    step: str
    approval: str
    decision: Literal["approved", "rejected", "expired"]
    detail: dict[str, Any]
    """Who, when, with which words. Becomes the step's output, or its error."""


class ChildRunEnded(NamedTuple):
    step: str
    run: str
    state: RunState
    output: bytes | None = None
    error: dict[str, Any] | None = None


class NotifySent(NamedTuple):
    step: str
    post: str
    error: dict[str, Any] | None = None
    """None: it is stored, and its delivery is the webhook's business. Else why it could not be."""


class TimerDue(NamedTuple):
    step: str = ""
    """Empty: the run's own."""


class TurnCame(NamedTuple):
    """No run of its session is ahead of it any more."""

    generation: int
    """Of the run when it began to wait: run again since, it waits anew, and this is an echo."""


class CancelAsked(NamedTuple):
    by: str = ""
    reason: str = ""
    compensate: bool = True
    generation: int | None = None
    """Of the run that is meant: run again since, it is another one. None: the run as it is."""


class PauseAsked(NamedTuple):
    by: str = ""
    reason: str = ""


class ResumeAsked(NamedTuple):
    by: str = ""


class RerunAsked(NamedTuple):
    step: str
    by: str = ""
    queued: bool = False
    """Its session has others: it begins when its turn comes."""


Happening = (
    JobEnded
    | ApprovalDecided
    | ChildRunEnded
    | NotifySent
    | TimerDue
    | TurnCame
    | CancelAsked
    | PauseAsked
    | ResumeAsked
    | RerunAsked
)

# -- commands: to be carried out in the transaction that writes the run and its steps --------------------


class SubmitJob(NamedTuple):
    step: str
    attempt: int
    key: str
    job: str
    topic: str
    payload: bytes
    labels: dict[str, str]
    priority: int
    risk: Risk | None
    session: str
    max_attempts: int | None
    deadline: float | None


class CancelJob(NamedTuple):
    step: str
    job: str
    reason: str


class AskApproval(NamedTuple):
    step: str
    attempt: int
    key: str
    approval: str
    message: str
    payload: bytes
    approvers: tuple[str, ...]
    quorum: int
    expires_s: float | None
    separate: bool
    choices: tuple[Choice, ...] | None
    response_schema: dict[str, Any] | None
    effect_preview: str


class WithdrawApproval(NamedTuple):
    step: str
    approval: str
    reason: str


class StartRun(NamedTuple):
    step: str
    attempt: int
    key: str
    run: str
    workflow: str
    revision: int | None
    """None: the newest."""
    input: bytes
    deadline: float | None
    depth: int


class CancelRun(NamedTuple):
    step: str
    run: str
    reason: str
    compensate: bool


class Notify(NamedTuple):
    step: str
    attempt: int
    key: str
    post: str
    webhook: str
    payload: bytes


class TellParent(NamedTuple):
    """The run has ended, and is a step of another one."""

    run: str
    step: str
    child: str
    state: RunState
    output: bytes
    error: dict[str, Any] | None


Command = SubmitJob | CancelJob | AskApproval | WithdrawApproval | StartRun | CancelRun | Notify | TellParent

# -- answers --------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A line for the timeline."""

    kind: str
    detail: dict[str, Any]


class Needed(NamedTuple):
    """Records of steps that must be read first."""

    names: frozenset[str] = frozenset()
    outline: bool = False
    """What there is of the run, step by step, but for what the steps have in and out: see `Step.outline`."""


class Advance(NamedTuple):
    run: Run
    steps: dict[str, Step]
    """Changed and new, by name."""
    removed: list[Step]
    commands: list[Command]
    notes: list[Said]
    changed: bool
    """False: nothing of it needs to be written."""


class Draw(NamedTuple):
    """What a pure function cannot make itself."""

    chance: Callable[[], float]
    """Uniform in [0, 1)."""
    new_id: Callable[[], str]


class Room(Protocol):
    """How much more the run's tenant may have now, by its limits. Answers are reasons; empty: there is room."""

    def why_no_job(self, topic: str, *, more: int, more_of_topic: int) -> str:
        """If so many more are as good as there, in all and of this topic."""

    def why_no_run(self, *, more: int) -> str: ...


class NewRun(Struct, frozen=True, kw_only=True):
    id: str
    tenant: Tenant
    revision: int
    input: Any
    """As `Graph.bind_input` returned it."""
    actor: str = ""
    session: str = ""
    queued: bool = False
    """Its session has others: it begins when its turn comes."""
    labels: dict[str, str] = {}
    parent_run: str = ""
    parent_step: str = ""
    depth: int = 0
    deadline: float | None = None
    """Of whoever started it; its own timeout may be sooner."""
