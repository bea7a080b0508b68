"""One decision of the policy: fifty rules, each with an expression over the payload, one job at a time.

Spread: five rules for each of ten families of topics. Of three jobs that take turns, two are decided by
the last rule of their family, after the four others were asked, and one by the default.
Crowded: all fifty for the same topic, and the last one decides: every expression is evaluated.
Beside it the same rules asked in the plain way: every expression is given the whole payload.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.harness import WARM_UP_S, Contender, Figures, Sample
from bench.subject import Subject
from bench.table import Figure, Goal, Row, bounded
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.policy import Rulebook
from holdfast.core.topic import Topic
from holdfast.flow.submit import Order, new_job

RULES = 50
TOPICS = 10
Decide = Callable[[Job], object]
PAYLOAD = b'{"amount": 120, "currency": "EUR", "to": "acct-17", "lines": [1, 2, 3], "note": "for the books"}'


def _document(topics: int) -> dict[str, Any]:
    rules = [_rule(n, topics) for n in range(RULES)]
    for n in range(RULES - topics, RULES):
        rules[n] |= {"when": "payload.amount > 100", "action": "allow"}
    return {"format": 1, "rules": rules, "default": {"action": "deny", "reason": "no rule allows it"}}


def _rule(n: int, topics: int) -> dict[str, Any]:
    return {
        "name": f"rule-{n}",
        "match": {"topic": f"family-{n % topics}.*", "risk": ["medium", "high"], "labels": {"env": "*"}},
        "when": f"payload.amount > {1000 + n} && payload.currency == 'EUR' && actor.startsWith('agent-')",
        "action": "require_approval",
    }


def _jobs(*topics: str) -> list[Job]:
    orders = [
        Order(tenant=Tenant("acme"), topic=topic, payload=PAYLOAD, labels={"env": "prod"}, actor="agent-7")
        for topic in topics
    ]
    return [new_job(order, Topic(name=order.topic), job_id=JobId("j"), now=0.0) for order in orders]


def holdfast(url: str, seconds: float) -> Figures:
    spread, crowded = Rulebook(1, _document(TOPICS)), Rulebook(1, _document(1))
    return _figures(spread.decide, crowded.decide, seconds)


def plainly(url: str, seconds: float) -> Figures:
    """The rules in order, every expression with the whole payload."""
    return _figures(_plain(_document(TOPICS)), _plain(_document(1)), seconds)


def _plain(document: dict[str, Any]) -> Decide:
    import cel
    import msgspec

    rules = [(r["match"]["topic"][:-1], cel.compile(r["when"]), r["action"]) for r in document["rules"]]

    def decide(job: Job) -> str:
        for prefix, program, action in rules:
            if job.topic.startswith(prefix):
                variables = {"payload": msgspec.json.decode(job.payload), "actor": job.actor, "labels": job.labels}
                if program.execute(variables):
                    return str(action)
        return "deny"

    return decide


def _figures(spread: Decide, crowded: Decide, seconds: float) -> Figures:
    few = _taken(spread, _jobs("family-3.pay", "family-7.refund", "elsewhere"), seconds)
    all_of_them = _taken(crowded, _jobs("family-0.pay"), seconds)
    return {
        "p50_us": statistics.median(few) * 1e6,
        "p99_us": few[len(few) * 99 // 100] * 1e6,
        "crowded_us": statistics.median(all_of_them) * 1e6,
    }


def _taken(decide: Decide, jobs: Sequence[Job], seconds: float) -> list[float]:
    """What each decision took, once warm; the quickest first."""
    taken: list[float] = []
    warm_at = time.perf_counter() + WARM_UP_S
    until = warm_at + seconds
    while (began := time.perf_counter()) < until:
        for job in jobs:
            start = time.perf_counter()
            decide(job)
            if began > warm_at:
                taken.append(time.perf_counter() - start)
    return sorted(taken)


def _rows(samples: Sequence[Sample]) -> list[Row]:
    def row(work: str, name: str, goal: Goal) -> Row:
        return bounded(work, samples, Figure("holdfast", name, "µs"), goal, Figure("cel, rule by rule", name, "µs"))

    return [
        row(f"policy decision, {RULES} rules with expressions: median", "p50_us", Goal(50, 20, "µs", most=True)),
        row("… 99th percentile", "p99_us", Goal(None, 100, "µs", most=True)),
        row("… all for one topic, the last decides: median", "crowded_us", Goal(None, 50, "µs", most=True)),
    ]


POLICY = Subject(
    name="policy",
    server="disk",
    contenders=[Contender(name="holdfast", run=holdfast), Contender(name="cel, rule by rule", run=plainly)],
    seconds=2.0,
    repetitions=5,
    rows=_rows,
)
