"""Two hundred jobs, two workers. One is paused beyond its leases, one is killed, and messages are lost; then rules come.

Told with real processes and real signals, on SQLite. The exit code is 0 if every job is accounted
for and nothing happened twice. `--keep` leaves the plane and its workers up at the end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import failing_publish
import governed
from stage import ENDED, OffScript, Process, Stage, on_stage

from holdfast.api import JobView, NewJob, ResolveEffect

BULK = 198
"""And two more: the report whose author is paused, and the refund whose payer is killed."""


@dataclass(frozen=True)
class Outcome:
    submitted: int
    succeeded: int
    attempts: int
    refused: int | None
    failed_publishes: int | None
    by_a_person: int | None
    duplicates: int
    lost: int

    @property
    def complete(self) -> bool:
        return not self.duplicates and not self.lost and self.succeeded == self.submitted


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # the story tells it in its own words
    try:
        with on_stage() as stage:
            fleet, publishing = tell(stage)
            under_rules = governed.tell(stage)
            print_summary(fleet, publishing, under_rules)
            if "--keep" in sys.argv[1:]:
                stay_up(stage)
    except OffScript as surprise:
        print(f"\nnot what should happen: {surprise}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    right = fleet.complete and fleet.refused >= 1 and publishing.complete and publishing.failed_publishes >= 1
    return 0 if right and under_rules.complete else 1


def tell(stage: Stage) -> tuple[Outcome, Outcome]:
    stage.narrate("story", f"the plane is up at {stage.url}, its jobs in one SQLite file")
    workers = {name: stage.start_worker(name) for name in ("anna", "ben")}
    report = stage.client.submit("report.write", {"read_s": 0.1, "proofread_s": 1.5}, priority=9)
    stage.until("the report is filed", lambda: stage.booked(report.id))
    paused = stage.client.get(report.id).worker.partition("@")[0]
    [other] = workers.keys() - {paused}
    workers[paused].signal(signal.SIGSTOP)
    stage.narrate(paused, "is stopped (SIGSTOP), with a report filed and not finished; nobody renews the lease")
    ids = [report.id, *submit_bulk(stage), kill_in_mid_refund(stage, workers[other])]

    stage.until("the report is finished", lambda: stage.client.get(report.id).state == "SUCCEEDED")
    stage.narrate(other, f"has finished {paused}'s report, without filing it again: that was remembered")
    before = stage.refused()
    workers[paused].signal(signal.SIGCONT)
    stage.until("the late result is refused", lambda: stage.refused() > before)
    stage.narrate(paused, "wakes up (SIGCONT) and says that the report is finished: REFUSED, its lease has ended")

    stage.until("only jobs that wait for a person are left", lambda: all(is_settled(job) for job in stage.jobs()))
    resolve_unknown(stage)
    stage.until("every job has ended", lambda: all(job.state in ENDED for job in stage.jobs()))
    stage.narrate("story", f"every job has ended; {failing_publish.JOBS} more, in this process, on a bus that fails")
    published = asyncio.run(failing_publish.run(stage.folder))
    stage.narrate("story", f"{published.failed} publishes failed until it returned; all were rolled back, and repeated")
    return audit(stage, ids), audit_published(published)


def kill_in_mid_refund(stage: Stage, worker: Process) -> str:
    """The refund's id. Its worker is killed after the bank has paid and before it has answered, and started again."""
    name = worker.name
    job = stage.client.submit("refund.pay", {"bank_answers_after_s": 20}, labels={"require.desk": name}, priority=9)
    stage.until("the bank has paid the refund", lambda: stage.booked(job.id))
    worker.end()
    killed_at = time.monotonic()
    stage.narrate(name, "is killed (-9) in the middle of a refund: paid, and the bank's answer not heard")
    stage.start_worker(name)
    stage.until("the refund is looked at again", lambda: is_settled(stage.client.get(job.id)))
    passed_s = time.monotonic() - killed_at
    stage.narrate(name, f"is back under its name, and was handed its jobs again, {passed_s:.1f} s after it was killed")
    return job.id


def submit_bulk(stage: Stage) -> list[str]:
    jobs = [NewJob(**one, idempotency_key=f"order-{n}") for n, one in enumerate(bulk())]
    first = stage.client.submit_many(jobs)
    again = stage.client.submit_many(jobs)
    ids = [answer.job.id for answer in first if answer.job is not None]
    repeated = sum(answer.repeated for answer in again)
    stage.narrate(
        "story", f"{len(ids)} jobs are submitted; and once more, with the same keys: {repeated} known already"
    )
    return ids


def bulk() -> list[dict[str, object]]:
    kinds: list[dict[str, object]] = []
    for n in range(BULK):
        if n % 4 == 0:
            kinds.append({"topic": "report.write", "payload": {"read_s": 0.1 + n % 7 / 20}})
        elif n % 9 == 0:
            kinds.append({"topic": "research.ask", "payload": {"failures": 1 + n % 2}})
        elif n % 10 == 1:
            kinds.append({"topic": "refund.pay", "payload": {}})
        else:
            kinds.append({"topic": "mail.send", "payload": {"to": f"customer-{n}"}})
    return kinds


def is_settled(job: JobView) -> bool:
    """Whether it has ended, or waits for a person's word on an effect."""
    return job.state in ENDED or (job.state == "SCHEDULED" and (job.error or {}).get("code") == "effect-unknown")


def resolve_unknown(stage: Stage) -> None:
    """What a person does with the worklist: look into the world's book, and say what is there."""
    for effect in stage.client.effects(state="unknown").items:
        done = stage.booked(effect.job_id)
        found = ResolveEffect(
            state="committed" if done else "absent", result={"paid": True} if done else None, reason="seen in the book"
        )
        stage.client.resolve_effect(effect.job_id, effect.key, found)
        stage.resolved.append(effect.job_id)
        topic = stage.client.get(effect.job_id).topic
        stage.narrate("person", f"finds {effect.key!r} of a {topic} job on the worklist; the book says: {found.state}")


def audit(stage: Stage, ids: Sequence[str]) -> Outcome:
    """What the plane says, beside what stands in the world's book."""
    jobs = {job.id: job for job in stage.jobs()}
    booked = Counter(job for (job,) in stage.world.execute("SELECT job FROM effect"))
    known = [jobs[job_id] for job_id in ids if job_id in jobs]
    succeeded = [job for job in known if job.state == "SUCCEEDED"]
    for job in known:
        if job.state != "SUCCEEDED":
            stage.narrate(
                "story", f"LOST: {job.topic} {job.id} is {job.state} after {job.attempts} attempts: {job.error}"
            )
    without_effect = [job for job in succeeded if not booked[job.id]]
    return Outcome(
        submitted=len(ids),
        succeeded=len(succeeded),
        attempts=sum(job.attempts for job in known),
        refused=stage.refused(),
        failed_publishes=None,
        by_a_person=len(stage.resolved),
        duplicates=sum(count - 1 for count in booked.values()),
        lost=len(ids) - len(succeeded) + len(without_effect),
    )


def audit_published(published: failing_publish.Published) -> Outcome:
    runs = Counter(published.runs)
    succeeded = [job for job in published.jobs if job.state == "SUCCEEDED"]
    return Outcome(
        submitted=len(published.jobs),
        succeeded=len(succeeded),
        attempts=sum(job.attempts for job in published.jobs),
        refused=None,
        failed_publishes=published.failed,
        by_a_person=None,
        duplicates=sum(count - 1 for count in runs.values()),
        lost=failing_publish.JOBS - sum(1 for job in succeeded if runs[job.id]),
    )


def print_summary(fleet: Outcome, publishing: Outcome, under_rules: governed.Governed) -> None:
    outcomes = fleet, publishing
    rows: dict[str, list[int | None]] = {
        "submitted": [o.submitted for o in outcomes],
        "succeeded": [o.succeeded for o in outcomes],
        "settled by a person": [o.by_a_person for o in outcomes],
        "attempts": [o.attempts for o in outcomes],
        "stale results refused": [o.refused for o in outcomes],
        "publishes failed": [o.failed_publishes for o in outcomes],
        "duplicate effects": [o.duplicates for o in outcomes],
        "lost": [o.lost for o in outcomes],
    }
    print(f"\n{'':<22} {'fleet':>7} {'failing bus':>12}")
    for name, (in_fleet, on_bus) in rows.items():
        print(f"{name:<22} {_shown(in_fleet):>7} {_shown(on_bus):>12}")
    print(f"\n{'under rules':<22}")
    print(f"{'runs succeeded':<22} {under_rules.runs:>7}")
    print(f"{'approvals decided once':<22} {under_rules.decided:>7}")
    print(f"{'jobs denied':<22} {under_rules.denied:>7}")
    print(f"{'submissions throttled':<22} {under_rules.throttled:>7}")


def _shown(count: int | None) -> str:
    return "-" if count is None else str(count)  # not part of that half of the story


def stay_up(stage: Stage) -> None:
    print(f"\nThe plane stays up at {stage.url} (its documentation: {stage.url}/openapi.json), with both workers.")
    print(f"Its files are in {stage.folder}. Ctrl-C ends it all.", flush=True)
    signal.pause()


if __name__ == "__main__":
    sys.exit(main())
