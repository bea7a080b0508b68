"""A drill about people: some approve and some reject the same things, at the same time, through two gateways."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from holdfast.errors import AlreadyDecided, HoldfastError
from holdfast.ops.drills.attempts import judge_jobs
from holdfast.ops.drills.findings import Figure, Sign
from holdfast.ops.drills.scrape import read_metric
from holdfast.ops.drills.stage import Plane, Stage

JOBS = 8
PEOPLE = 3
"""Of each opinion, for each job."""
RULES = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [{"name": "drill", "match": {"topic": "drill.asked"}, "action": "require_approval"}],
}


async def approve_reject_race(stage: Stage) -> None:
    planes = [await stage.start_plane("plane 1"), await stage.start_plane("plane 2")]
    version = (await stage.client.publish_policy(RULES, reason="drill")).version
    await stage.until("both planes decide by these rules", lambda: _use(stage, planes, version))
    await stage.start_worker("anna")
    ids = await stage.submit_many("drill.asked", JOBS)
    approvals = await stage.until(f"{JOBS} approvals wait", lambda: _waiting(stage))
    stage.fault(
        "plane 1", f"{PEOPLE} people approve and {PEOPLE} reject each of {JOBS} jobs, at once, through both gateways"
    )
    votes = [
        _decide(stage, planes[(n + who) % 2], approval, approves=bool(who % 2), who=who)
        for n, approval in enumerate(approvals)
        for who in range(2 * PEOPLE)
    ]
    taken = Counter(approval for approval, was_taken in await asyncio.gather(*votes) if was_taken)
    await stage.until(
        "those asked about anew are answered", lambda: _answer_anew(stage, ids), promise="P8", within_s=90
    )
    await stage.wait_ended(ids, promise="P8", within_s=90)
    stage.found("P8", "approvals decided more than once", sum(count > 1 for count in taken.values()), at_most=0)
    stage.found("P8", "approvals decided", len(taken), at_least=JOBS, at_most=JOBS)
    stage.found("P8", "later words refused", len(votes) - sum(taken.values()), at_least=JOBS * (2 * PEOPLE - 1))
    stage.figure(Figure.STALE_REFUSED, len(votes) - sum(taken.values()))
    await _judge_runs(stage, ids)
    await judge_jobs(stage, ids, promise="P8")


async def _use(stage: Stage, planes: list[Plane], version: int) -> bool:
    """One that does not know the rules yet would ask anew about what was approved: right, and not the subject."""
    return all([await read_metric(stage, plane.url, "policy_version") >= version for plane in planes])


async def _waiting(stage: Stage) -> list[str]:
    found = [approval.id for approval in (await stage.client.approvals(limit=100)).items]
    return found if len(found) == JOBS else []


async def _answer_anew(stage: Stage, ids: list[str]) -> bool:
    """A worker on a busy machine may hand an attempt back that has used its approval up: then people are asked again,
    and here they say yes again. True once nobody waits and all have ended."""
    for approval in (await stage.client.approvals(state="pending", limit=100)).items:
        stage.tell(f"{approval.job_id} was handed back after its approval was used: asked anew, and approved")
        await stage.client_of(stage.url, actor="person-again").approve(approval.id, comment="drill")
    return not await stage.unended(ids)


async def _decide(stage: Stage, plane: Plane, approval: str, *, approves: bool, who: int) -> tuple[str, bool]:
    client = stage.client_of(plane.url, actor=f"person-{who}")
    say: Callable[..., Awaitable[object]] = client.approve if approves else client.reject
    for _ in range(30):
        try:
            await say(approval, comment="drill")
        except AlreadyDecided:
            return approval, False
        except HoldfastError:  # somebody else has its lock for longer than one waits: come back
            await asyncio.sleep(0.3)
            continue
        stage.report.timeline.mark(
            plane.process.name,
            Sign.ACCEPTED,
            f"{'approved' if approves else 'rejected'} by person-{who}",
            at=stage.now(),
        )
        return approval, True
    return approval, False


async def _judge_runs(stage: Stage, ids: list[str]) -> None:
    ran = Counter(note.item for note in stage.journal.read("ran"))
    states = {job_id: (await stage.client.get(job_id)).state for job_id in ids}
    approved = [job_id for job_id, state in states.items() if state == "SUCCEEDED"]
    stage.tell(f"{len(approved)} jobs were approved and ran, {len(ids) - len(approved)} were rejected")
    stage.found("P8", "approved jobs that did not run exactly once", sum(ran[job] != 1 for job in approved), at_most=0)
    stage.found("P8", "rejected jobs that ran", sum(bool(ran[job]) for job in ids if job not in approved), at_most=0)
