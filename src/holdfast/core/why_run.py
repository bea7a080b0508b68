"""Why a run is where it is: mostly, because a step of it is; and why that is, is the step's job to say."""

from __future__ import annotations

from typing import assert_never

from holdfast.core.run import Run, RunState, Step, StepState
from holdfast.core.run_recovery import RunRemedy, recover_run
from holdfast.core.why import Finding, Reason, Weight, finding, ranked
from holdfast.core.why_facts import RunFacts, StepFacts

UNHEARD_S = 10.0
"""The engine hears of an end within moments: what it has left for so long, nobody tells the run."""


def why_run(facts: RunFacts) -> list[Finding]:
    """Never empty."""
    match facts.run.state:
        case RunState.SUCCEEDED | RunState.FAILED | RunState.CANCELLED | RunState.TIMEOUT:
            return ranked([_ended(facts.run), *_undone_badly(facts.run)])
        case RunState.QUEUED:
            found = _queued(facts)
        case RunState.RUNNING:
            found = _under_way(facts)
        case RunState.PAUSED:
            found = [_paused(facts), *_under_way(facts)]
        case RunState.CANCELLING:
            found = [_cancelling(facts), *_under_way(facts)]
        case RunState.COMPENSATING:
            found = [_compensating(facts), *_under_way(facts)]
        case never:
            assert_never(never)
    return ranked([*_unattended(facts), *_undone_badly(facts.run), *found] or [_ready(facts)])


def _under_way(facts: RunFacts) -> list[Finding]:
    return [_step(facts, one) for one in facts.steps]


def _step(facts: RunFacts, known: StepFacts) -> Finding:
    step, run = known.step, facts.run
    if step.state is StepState.READY:
        return _not_begun(facts, step)
    cause = known.cause
    until = step.wake if step.state in (StepState.DELAYED, StepState.RETRYING) else None
    summary = f"step {step.name} {_DOING[step.state]}"
    weight = Weight.WORKING if step.state is StepState.RUNNING and cause is None else Weight.WAITING
    if cause is not None:
        summary += f", {cause.summary}"
        weight, until = cause.weight, cause.until
        if cause.weight is Weight.ENDED:
            weight = Weight.WAITING
            summary = f"what step {step.name} waited for has ended, and the run is about to be told: {cause.summary}"
    return finding(
        Reason.WAITS_FOR_STEP,
        summary,
        weight=weight,
        since=step.since,
        until=until,
        who="" if cause is None else cause.who,
        then=(f"holdfast run steps {run.id}",) if cause is None else cause.then,
        step=step.name,
        state=step.state.value,
        attempt=step.attempt,
        waits_for=step.ref,
        because=None if cause is None else cause.reason.value,
        error=(step.error or {}).get("code"),
    )


_DOING = {
    StepState.RUNNING: "is under way",
    StepState.ASKING: "waits for a person",
    StepState.DELAYED: "waits for its time",
    StepState.RETRYING: "failed, and is tried again after a while",
    StepState.STOPPING: "was told to stop, and has not yet",
}


def _not_begun(facts: RunFacts, step: Step) -> Finding:
    run, most = facts.run, facts.max_parallel
    if most is not None and run.active >= most:
        return finding(
            Reason.RUN_AT_LIMIT,
            f"step {step.name} could begin, but {run.active} of the run's steps are at work, and {most} may be",
            since=step.since,
            who=f"whoever defines workflow {run.workflow}: max_parallel",
            then=(f"holdfast run steps {run.id}",),
            step=step.name,
            active=run.active,
            max_parallel=most,
        )
    return finding(
        Reason.WAITS_FOR_STEP,
        f"step {step.name} begins when the run goes on",
        since=step.since,
        step=step.name,
        state=step.state.value,
    )


def _queued(facts: RunFacts) -> list[Finding]:
    if not facts.ahead:
        return []
    run, first, cause = facts.run, facts.ahead[0], facts.ahead_cause
    others = f", and {len(facts.ahead) - 1} more" if len(facts.ahead) > 1 else ""
    because = "" if cause is None else f"; of {first}: {cause.summary}"
    return [
        finding(
            Reason.SESSION_BUSY,
            f"run {first} of session {run.session!r} comes first{others}{because}",
            since=run.since,
            who="" if cause is None else cause.who,
            then=(f"holdfast why run {first}", *(() if cause is None else cause.then)),
            session=run.session,
            ahead=len(facts.ahead),
            waits_for=first,
            because=None if cause is None else cause.reason.value,
        )
    ]


def _paused(facts: RunFacts) -> Finding:
    run, said = facts.run, f": {facts.pause_reason}" if facts.pause_reason else ""
    return finding(
        Reason.RUN_PAUSED,
        f"{facts.paused_by or 'somebody'} has paused it{said}",
        since=run.since,
        who=facts.paused_by or "whoever paused it",
        then=(f"holdfast run resume {run.id}",),
        by=facts.paused_by,
        reason=facts.pause_reason,
    )


def _cancelling(facts: RunFacts) -> Finding:
    run, error = facts.run, facts.run.error or {}
    return finding(
        Reason.RUN_CANCELLING,
        f"it is ending as {run.ending or 'cancelled'} ({error.get('code', '')}): what has begun is being stopped",
        since=run.since,
        then=(f"holdfast run steps {run.id}",),
        active=run.active,
        code=error.get("code"),
        step=error.get("step"),
    )


def _compensating(facts: RunFacts) -> Finding:
    run, error = facts.run, facts.run.error or {}
    return finding(
        Reason.RUN_COMPENSATING,
        f"it is ending as {run.ending or 'failed'} ({error.get('code', '')}): what was done is being undone",
        since=run.since,
        then=(f"holdfast run steps {run.id}",),
        undoing=run.undo,
        code=error.get("code"),
        step=error.get("step"),
    )


def _unattended(facts: RunFacts) -> list[Finding]:
    """Something has ended that it waits for, or its time has come, and no engine has told it."""
    run, now = facts.run, facts.now
    overdue = run.due if recover_run(run, now=now).remedy is not RunRemedy.NOTHING else None
    # While it is paused, the time of a step may pass.
    of_steps = () if run.state is RunState.PAUSED else (known.step.due for known in facts.steps)
    since = min((time for time in (facts.unheard_since, overdue, *of_steps) if time is not None), default=None)
    if since is None or now - since < UNHEARD_S:
        return []
    if facts.lock is not None and not facts.is_holder_gone:
        return [_lock_held(facts, since)]
    return [
        finding(
            Reason.RUN_UNATTENDED,
            f"for {now - since:.0f} s something is to be told to it, and nobody does: no workflow engine is at work",
            since=since,
            who="whoever runs the plane: start a workflow engine, or look into the log of the one that runs",
            then=(f"holdfast run timeline {run.id}", "holdfast doctor"),
        )
    ]


def _lock_held(facts: RunFacts, since: float) -> Finding:
    assert facts.lock is not None
    return finding(
        Reason.RUN_LOCK_HELD,
        f"{facts.lock.holder} has the run's lock and does not let go of it",
        since=since,
        until=facts.now + facts.lock.remaining_ms / 1000,
        then=(f"holdfast why lock {facts.lock.key}",),
        holder=facts.lock.holder,
        fence=facts.lock.fence,
    )


def _undone_badly(run: Run) -> list[Finding]:
    if not run.undone_badly:
        return []
    return [
        finding(
            Reason.COMPENSATION_FAILED,
            f"{run.undone_badly} steps could not be undone: a person has to look",
            weight=Weight.ENDED if run.is_terminal else None,
            since=run.since,
            who="whoever is on call",
            then=(f"holdfast run steps {run.id}",),
            undone_badly=run.undone_badly,
        )
    ]


def _ended(run: Run) -> Finding:
    error = run.error or {}
    reasons = {
        RunState.SUCCEEDED: (Reason.SUCCEEDED, "it has succeeded"),
        RunState.CANCELLED: (Reason.CANCELLED, "it was cancelled"),
        RunState.TIMEOUT: (Reason.TIMED_OUT, "its deadline passed"),
    }
    step, code = error.get("step"), error.get("cause") or error.get("code", "no code")
    failed = f"step {step} failed ({code})" if step else f"it failed ({code})"
    reason, summary = reasons.get(run.state, (Reason.FAILED, failed))
    then = (f"holdfast run steps {run.id} -o json", f"holdfast run rerun {run.id} --from {step}")
    return finding(
        reason,
        summary,
        since=run.since,
        then=(f"holdfast run timeline {run.id}", *(then if reason is Reason.FAILED and step else ())),
        code=error.get("code"),
        cause=error.get("cause"),
        message=error.get("message"),
        step=step,
    )


def _ready(facts: RunFacts) -> Finding:
    return finding(Reason.READY, "nothing stands in its way: it goes on at the next look", since=facts.run.since)
