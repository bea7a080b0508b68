"""S3 and S4, of runs that have a session, as checkers over what was committed. Each says what it found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core.job import Tenant
from holdfast.core.record import Record
from holdfast.core.run import RUN_TERMINAL, Run, RunState, StepState
from holdfast.ports import JobEvent
from simulation.governed_checks import Facts

ENDS = frozenset(f"run.{state}" for state in RUN_TERMINAL)


def roots(runs: Mapping[str, Run]) -> dict[str, str]:
    """Of each run the one that has a seat for it: itself, or the one that it is within."""
    found = {}
    for run in runs.values():
        root = run
        while root.parent_run:
            root = runs[root.parent_run]
        found[run.id] = root.id
    return found


def find_side_by_side(live: Iterable[Run]) -> list[str]:
    """S3, of one moment: of a session's runs at most one has begun and has not ended."""
    begun: dict[str, list[str]] = defaultdict(list)
    for run in live:
        if run.state is not RunState.QUEUED:
            begun[run.session].append(run.id)
    return [f"S3: at work in session {name} are {those}" for name, those in begun.items() if len(those) > 1]


def check_turns(facts: Facts) -> None:
    """S3: a run begins when all that came before it have ended: so one at a time, and in the order they came."""
    root_of = roots(facts.runs)
    line: dict[tuple[Tenant, str], list[str]] = defaultdict(list)
    for event in facts.events:
        if not event.run:
            continue
        run = facts.runs[root_of[event.run]]
        waiting = line[run.tenant, run.session]
        if event.kind in ("run.started", "run.rerun") and event.run == run.id:
            waiting.append(run.id)
        elif event.kind in ENDS and event.run == run.id:
            waiting.remove(run.id)
        elif _is_at_work(event) and run.id in waiting:
            ahead = waiting[: waiting.index(run.id)]
            assert not ahead, f"S3: {run.id} of session {run.session} has {event.kind}, and {ahead} came before it"


def _is_at_work(event: JobEvent) -> bool:
    return event.kind == "run.begun" or (event.kind.startswith(("step.", "job.")) and event.kind != "step.cancelled")


def check_ended(facts: Facts, sessions: Iterable[Record]) -> None:
    """S4: every run that was accepted came to its turn and has ended, and nobody's seat is left."""
    waiting = {run.id: run.state.value for run in facts.runs.values() if not run.is_terminal}
    assert not waiting, f"S4: runs that wait for ever: {waiting}"
    taken = {session.id: session.body for session in sessions if msgspec.json.decode(session.body)}
    assert not taken, f"S4: all runs have ended, and there are seats: {taken}"


def check_turned_away(facts: Facts, turned_away: Sequence[str]) -> None:
    """S4: a run that was turned away has left nothing."""
    gone = set(turned_away)
    left = [name for name in facts.runs if name in gone]
    left += [step.name for step in facts.steps if step.run in gone]
    left += [job.id for job in facts.jobs.values() if job.run in gone]
    left += [event.kind for event in facts.events if {event.run, _who(event)} & gone]
    left += [key.id for key in facts.keys if key.parent in gone]
    assert not left, f"S4: of runs that were turned away there is {left}"


def _who(event: JobEvent) -> str:
    """The run that told this one to stop, if one did."""
    return str(event.detail.get("by", "")).removeprefix("run ")


def check_undone(facts: Facts) -> None:
    """S4: what was done in a run that another one rolled back was undone; in one that was interrupted it was not."""
    for event in facts.events:
        by = _who(event)
        stopped = facts.runs.get(event.run)
        if event.kind != "run.cancelling" or by not in facts.runs or stopped is None:
            continue
        if stopped.parent_run or stopped.generation:
            continue
        policy = facts.runs[by].labels["policy"]
        wrong = StepState.SUCCEEDED if policy == "rollback" else StepState.COMPENSATED
        found = [step.name for step in facts.steps if (step.run, step.name, step.state) == (event.run, "book", wrong)]
        assert not found, f"S4: {by} came to {policy} {event.run}, where {found} is {wrong}"


def check_stopped(facts: Facts) -> None:
    """S4: nobody but one that came later stops a run of its session: not one that came before it was run again."""
    came: dict[str, int] = {}
    for event in facts.events:
        if event.kind in ("run.started", "run.rerun"):
            came[event.run] = event.number
        elif event.kind == "run.cancelling" and not facts.runs[event.run].parent_run and _who(event) in facts.runs:
            by = _who(event)
            assert came[by] > came[event.run], f"S4: {by} has stopped {event.run}, which came after it"


def reached(facts: Facts) -> set[str]:
    """What happened in this story that others must know of."""
    found = {event.kind for event in facts.events}
    labels = {run.id: run.labels.get("policy", "") for run in facts.runs.values()}
    stopped = [e for e in facts.events if e.kind == "run.cancelling" and not facts.runs[e.run].parent_run]
    found |= {f"stopped to {labels.get(_who(event), 'end')}" for event in stopped}
    waited = {event.run for event in facts.events if event.detail.get("code") == "session-busy"}
    begun = {event.run for event in facts.events if event.kind == "run.begun"}
    found |= {"waited and never began"} if waited - begun else set()
    found |= {"waited to be run again" for event in facts.events if event.kind == "run.rerun" and event.run in waited}
    return found
