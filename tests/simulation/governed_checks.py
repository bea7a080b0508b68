"""W, A and T as checkers over what was committed, and over what people were told. Each says what it found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.core.approval import Approval, ApprovalState, from_record
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import RUN_TERMINAL, Run, RunState, Step, StepState, run_of
from holdfast.core.states import State
from holdfast.ports import JobEvent
from simulation.governed_people import Word
from simulation.governed_rules import DEPENDENCIES, GLOBEX, PARTS, RUNNING_MAX

AT_WORK = (State.DISPATCHED, State.RUNNING)
PLANES = 2


@dataclass
class Facts:
    """What there is at the end."""

    events: Sequence[JobEvent]
    jobs: dict[JobId, Job]
    runs: dict[str, Run]
    steps: list[Step]
    approvals: dict[str, Approval]
    keys: list[Record]
    """Of runs."""
    quorums: dict[int, int]
    """What each version of the policy asks for."""


# -- records ------------------------------------------------------------------------------------------


def why_not_after(before: Record, after: Record) -> str:
    """What is wrong if a record was first this, and then that; empty if nothing is."""
    promise = "A1" if before.kind is Kind.APPROVAL else "W2"
    if after.version < before.version or (after.version == before.version and after.body != before.body):
        return f"{promise}: {before.kind} {before.id} was written twice as version {after.version}"
    if before.kind is Kind.RUN:
        old, new = run_of(before), run_of(after)
        if new.fence < old.fence:
            return f"W2: run {old.id} was written under fence {new.fence}, after {old.fence}"
        if old.is_terminal and new.state is not old.state and new.generation != old.generation + 1:  # run again
            return f"W1: run {old.id} was {old.state}, and then {new.state}"
    else:
        asked, decided = from_record(before), from_record(after)
        if asked.verdict is not None and decided.verdict != asked.verdict:
            return f"A1: approval {asked.id} was decided twice: {asked.verdict}, then {decided.verdict}"
    return ""


# -- runs ---------------------------------------------------------------------------------------------


def check_runs(facts: Facts) -> None:
    """W1, and W2 as far as the timeline shows it."""
    timelines: dict[str, list[JobEvent]] = defaultdict(list)
    for event in facts.events:
        if event.run:
            timelines[event.run].append(event)
    jobs: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in facts.jobs.values():
        if job.run:
            jobs[job.run, job.step].append(job)
    for (run_id, step), made in jobs.items():
        assert len(made) == 1, f"W1: step {step} of run {run_id} was started {len(made)} times: {made}"
    for run_id, timeline in timelines.items():
        _check_timeline(facts.runs[run_id], timeline)
    for run in facts.runs.values():
        _check_end(run, timelines[run.id])
        begun = {event.detail["ref"] for event in timelines[run.id] if "ref" in event.detail}
        unknown = [job.id for job in facts.jobs.values() if job.run == run.id and job.id not in begun]
        assert not unknown, f"W1: run {run.id} knows nothing of its jobs {unknown}"


def _check_timeline(run: Run, timeline: Sequence[JobEvent]) -> None:
    fences = [event.detail["fence"] for event in timeline if not event.job_id and "fence" in event.detail]
    assert fences == sorted(fences), f"W2: the fences of run {run.id} do not grow: {fences}"
    happened = Counter((event.detail["step"], event.kind) for event in timeline if event.kind.startswith("step."))
    twice = [step for step, times in happened.items() if times > 1]
    assert not twice, f"W1: happened twice in run {run.id}: {twice}"
    at = {(event.detail["step"], event.kind): event.number for event in timeline if event.kind.startswith("step.")}
    for step, needed in DEPENDENCIES[run.workflow].items():
        begun = at.get((step, "step.started"))
        missing = [name for name in needed if begun and at.get((name, "step.succeeded"), begun) >= begun]
        assert not missing, f"W1: {step} of run {run.id} began before {missing} had succeeded"
    for step, parts in PARTS.get(run.workflow, {}).items():
        ended = at.get((step, "step.succeeded"))
        missing = [part for part in parts if ended and at.get((part, "step.succeeded"), ended) >= ended]
        assert not missing, f"W1: {step} of run {run.id} ended before its parts {missing}"


def _check_end(run: Run, timeline: Sequence[JobEvent]) -> None:
    ends = [event.kind for event in timeline if event.kind in {f"run.{state}" for state in RUN_TERMINAL}]
    expected = [f"run.{run.state}"] if run.is_terminal else []
    assert ends == expected, f"W1: run {run.id} is {run.state}, and its history says {ends}"


def check_undone(facts: Facts) -> None:
    """What was done in a run that failed was undone."""
    failed = {run.id for run in facts.runs.values() if run.state is not RunState.SUCCEEDED}
    left = [step.name for step in facts.steps if step.run in failed and (step.name, step.state) == _PAID]
    assert not left, f"W1: a run has failed, and {left} was not undone"


_PAID = ("pay", StepState.SUCCEEDED)

# -- approvals ----------------------------------------------------------------------------------------


def check_answers(facts: Facts, words: Iterable[Word]) -> None:
    """A1: everybody was told of the same decision."""
    decided = Counter(event.detail["approval"] for event in facts.events if event.kind == "approval.decided")
    twice = [approval for approval, times in decided.items() if times > 1]
    assert not twice, f"A1: decided more than once: {twice}"
    for word in words:
        verdict = facts.approvals[word.approval].verdict
        told = _verdict_told(word)
        if told is not None:
            assert verdict is not None, f"A1: {word} was told of a decision, and there is none"
            made = (verdict.by, verdict.decision)
            assert told == made, f"A1: {word.by} was told that {word.approval} was decided by {told}; it was {made}"


def check_read(facts: Facts, words: Iterable[Word]) -> None:
    """A2: whoever was told that their yes counts had read what it counts for."""
    for word in words:
        if (word.status, word.choice) == (200, "approve"):
            said = facts.approvals[word.approval].words
            counted = [w.content for w in said if (w.by, w.choice) == (word.by, word.choice)]
            assert word.read in counted, f"A2: {word.by} approved something of {word.approval} that they had not read"


def _verdict_told(word: Word) -> tuple[str, str] | None:
    if word.status == 409 and word.answer["code"] == "already-decided":
        return word.answer["decided_by"], word.answer["decision"]
    if word.status == 200 and word.answer["verdict"] is not None:
        return word.answer["verdict"]["by"], word.answer["verdict"]["decision"]
    return None


def check_in_time(facts: Facts) -> None:
    """A1: whoever decides does it before the approval has expired. A3: and does not ask for it as well."""
    for approval in facts.approvals.values():
        late = [word for word in approval.words if word.at >= approval.created_at + approval.terms.expires_s]
        assert not late, f"A1: {approval.id} had expired when they said {late}"
        own = [word for word in approval.words if word.by == approval.requested_by]
        assert not (own and approval.terms.separate), f"A3: {approval.requested_by} approved their own {approval.id}"


def check_used(facts: Facts, sent_under: dict[tuple[JobId, int], int]) -> None:
    """A2: each attempt of a job that needs an approval had one for itself, as strict as the policy asked for."""
    used: Counter[str] = Counter()
    approval_of = {(event.job_id, event.fence): event.detail.get("approval") for event in _dispatches(facts.events)}
    decided = {event.detail["approval"]: event.number for event in facts.events if event.kind == "approval.decided"}
    for event in _dispatches(facts.events):
        name = event.detail.get("approval")
        if name is None:
            continue
        assert decided.get(name, event.number) < event.number, (
            f"A2: {event.job_id} was dispatched before {name} was decided"
        )
        approval = facts.approvals[name]
        asked = facts.quorums[sent_under[event.job_id, event.fence]]
        assert approval.terms.quorum >= asked, f"A2: {event.job_id} went on {name}; the policy asks for {asked} people"
    for event in facts.events:
        if event.kind == "job.started" and (name := approval_of.get((event.job_id, event.fence))):
            used[name] += 1
    twice = [name for name, times in used.items() if times > 1]
    assert not twice, f"A2: used for more than one attempt: {twice}"


def _dispatches(events: Iterable[JobEvent]) -> Iterable[JobEvent]:
    return (event for event in events if event.kind == "job.dispatched")


def check_gone(facts: Facts) -> None:
    """An approval is decided, or over, by the time its job is."""
    open_ = [a.id for a in facts.approvals.values() if a.state in (ApprovalState.PENDING, ApprovalState.APPROVED)]
    jobs = [a for a in open_ if facts.approvals[a].job_id]
    assert not jobs, f"A1: their jobs have ended, and they wait: {jobs}"


# -- schedules, sessions, tenants ---------------------------------------------------------------------


def check_ticks(facts: Facts) -> None:
    """R1: each tick of a schedule was obeyed once, whoever looked."""
    fired = [event for event in facts.events if event.kind == "schedule.fired"]
    ticks = Counter((event.detail["schedule"], tick) for event in fired for tick in event.detail["ticks"])
    twice = [tick for tick, times in ticks.items() if times > 1]
    assert not twice, f"R1: obeyed twice: {twice}"
    told = sorted(job for event in fired for job in event.detail.get("jobs", ()))
    made = sorted(job.id for job in facts.jobs.values() if "schedule" in job.labels and not job.run)
    assert told == made, f"R1: schedules made {made}, and tell of {told}"
    started = sorted(run.id for run in facts.runs.values() if "schedule" in run.labels)
    keyed = sorted(key.parent for key in facts.keys if "schedule" in key.id)
    assert started == keyed, f"R1: schedules started {started}; their ticks were for {keyed}"


def check_sessions(facts: Facts) -> None:
    """S2: of a session's jobs one is at work at a time."""
    at_work: dict[tuple[Tenant, str], JobId] = {}
    for event in facts.events:
        job = facts.jobs.get(event.job_id)
        if job is None or not job.session:
            continue
        place = (job.tenant, job.session)
        if event.state in AT_WORK:
            other = at_work.setdefault(place, job.id)
            assert other == job.id, f"S2: {job.id} of session {job.session} was at work beside {other}"
        elif at_work.get(place) == job.id:
            del at_work[place]


def check_quota(facts: Facts, *, in_doubt: int) -> None:
    """T2: a tenant has no more at work than it may, but for what two schedulers place at once, and what
    was placed by one that was never told so."""
    at_work: set[JobId] = set()
    for event in facts.events:
        if event.tenant == GLOBEX and event.job_id:
            (at_work.add if event.state in AT_WORK else at_work.discard)(event.job_id)
            most = PLANES * RUNNING_MAX + in_doubt
            assert len(at_work) <= most, f"T2: {GLOBEX} has {len(at_work)} jobs at work, and may have {RUNNING_MAX}"


def check_share(facts: Facts) -> None:
    """T2: where nothing goes wrong, no tenant waits for more than its 2n-th part, at each of the schedulers."""
    waiting: dict[Tenant, set[JobId]] = defaultdict(set)
    passed: Counter[Tenant] = Counter()
    for event in facts.events:
        job = facts.jobs.get(event.job_id)
        if job is None or job.session or job.tenant == GLOBEX:
            continue
        (waiting[job.tenant].add if event.state is State.SCHEDULED else waiting[job.tenant].discard)(job.id)
        if event.kind != "job.dispatched":
            continue
        passed[job.tenant] = 0
        others = [tenant for tenant, jobs in waiting.items() if jobs and tenant != job.tenant]
        for tenant in others:
            passed[tenant] += 1
            most = PLANES * 2 * (len(others) + 1)
            assert passed[tenant] <= most, f"T2: {tenant} waits while others have {passed[tenant]} dispatches"
        for tenant in waiting:
            if tenant not in others:
                passed[tenant] = 0


# -- what was reached ---------------------------------------------------------------------------------


def reached(facts: Facts, words: Iterable[Word]) -> set[str]:
    """What happened in this story that others must know of."""
    found = {event.kind for event in facts.events}
    said = list(words)
    found |= {"approval raced" for word in said if word.status == 409}
    found |= {"approval raced by time" for word in said if word.status == 409 and not word.answer.get("decided_by")}
    found |= {"requester refused" for word in said if word.status == 403}
    found |= {"edited" for a in facts.approvals.values() for word in a.words if word.choice == "edit"}
    found |= {"asked again" for approval in facts.approvals.values() if approval.round > 1}
    found |= {"tick missed" for event in facts.events if event.detail.get("skipped") and "ticks" in event.detail}
    found |= {"ticks made up for" for event in facts.events if len(event.detail.get("ticks", ())) > 1}
    found |= {"policy tightened" for event in facts.events if event.detail.get("reason") == "policy-tightened"}
    return found
