"""The policy: may this job run? Rules in order, the first that matches decides, else the default.

Compiled once per version. Tenant, topic and risk choose the rules that can match at all, remembered for
each combination; labels and actor are compared next; only then is an expression evaluated, and all
expressions about one job share one handing over of its data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.core import rules as written
from holdfast.core.approval import terms_of
from holdfast.core.decision import (
    DEFAULT_RULE,
    ApprovalDemand,
    Choice,
    Constraints,
    Decision,
    Per,
    Rate,
    Throttle,
    recorded,
)
from holdfast.core.expression import Expression, ExpressionFailed, Reading, compile_expression
from holdfast.core.job import Job
from holdfast.core.schema import digest
from holdfast.core.states import Event, Risk

REMEMBERED_MAX = 4096
"""Combinations of tenant, topic and risk, so that callers who invent them do not fill the memory."""

_EVENTS = {
    "allow": Event.ALLOW,
    "throttle": Event.ALLOW,
    "deny": Event.DENY,
    "require_approval": Event.REQUIRE_APPROVAL,
}


class Policy(Protocol):
    @property
    def version(self) -> int: ...

    def decide(self, job: Job) -> Decision: ...


class Rulebook:
    """One version of the policy, compiled."""

    def __init__(self, version: int, document: Any) -> None:
        """Raises `Invalid`."""
        rules = written.read_rules(document)
        self.version = version
        self.hash = digest(document)
        self.timeout_s = rules.timeout_ms / 1000
        self._open = frozenset(risk for risk, mode in rules.on_failure.items() if mode == "open")
        self._rules = tuple(self._compiled(rule.name, rule, rule.match, rule.when) for rule in rules.rules)
        self._default = self._compiled(DEFAULT_RULE, rules.default, written.Match(), None)
        self._candidates: dict[tuple[str, str, Risk], _Candidates] = {}

    def decide(self, job: Job, *, timed_out: Callable[[], bool] = lambda: False) -> Decision:
        """Total: what cannot be evaluated is decided by `on_failure`.

        `timed_out` is asked before every expression. A policy that takes too long now may be quick in a
        moment: the job waits, and is asked about again. A rule that cannot be applied to the job's
        own data never will be: the job is denied.
        """
        candidates = self._candidates_for(job)
        facts = None
        for rule in candidates.rules:
            if not rule.fits(job):
                continue
            if rule.when is not None:
                if timed_out():
                    return self.failed(job, None, "the policy took too long", rule.name)
                try:
                    facts = facts or candidates.reading.over(written.variables_of(job, candidates.reading.names))
                    matches = facts.value(rule.when)
                except ExpressionFailed as error:
                    return self.failed(job, Event.DENY, f"rule {rule.name} cannot be evaluated: {error}", rule.name)
                if matches is not True:
                    if matches is not False:
                        reason = f"rule {rule.name} cannot be evaluated: it is neither true nor false"
                        return self.failed(job, Event.DENY, reason, rule.name)
                    continue
            return rule.decision_for(job)
        return self._default.decision_for(job)

    def failed(self, job: Job, closed: Event | None, reason: str, rule: str) -> Decision:
        if job.risk in self._open:
            return Decision(Event.ALLOW, reason, rule, self.version, self.hash, failed="open")
        return Decision(closed, reason, rule, self.version, self.hash, failed="closed")

    def _candidates_for(self, job: Job) -> _Candidates:
        key = job.tenant, job.topic, job.risk
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) >= REMEMBERED_MAX:
                self._candidates.clear()
            rules = tuple(rule for rule in self._rules if rule.could_match(*key))
            reading = Reading(rule.when for rule in rules if rule.when is not None)
            found = self._candidates[key] = _Candidates(rules, reading)
        return found

    def _compiled(self, name: str, rule: written.Default, match: written.Match, when: str | None) -> _Rule:
        event = _EVENTS[rule.action]
        limits = rule.throttle
        return _Rule(
            name=name,
            tenant=_matcher(match.tenant),
            topic=_matcher(match.topic),
            risks=frozenset(Risk) if match.risk is None else frozenset(_list(match.risk)),
            labels=tuple((label, None if value == "*" else _matcher(value)) for label, value in match.labels.items()),
            actor=_matcher(match.actor),
            when=None if when is None else compile_expression(when, names=written.NAMES),
            decision=Decision(
                event,
                rule.reason,
                name,
                self.version,
                self.hash,
                approval=written.demand(rule.approval) if event is Event.REQUIRE_APPROVAL else None,
                constraints=written.constraints(rule.constraints),
            ),
            limits=None if limits is None else _Limits(limits.per, written.rate(limits), limits.concurrency),
        )


Matcher = Callable[[str], object]


class _Limits(NamedTuple):
    per: Per
    rate: Rate | None
    concurrency: int | None


class _Rule(NamedTuple):
    name: str
    tenant: Matcher | None
    topic: Matcher | None
    risks: frozenset[Risk]
    labels: tuple[tuple[str, Matcher | None], ...]
    actor: Matcher | None
    when: Expression | None
    decision: Decision
    limits: _Limits | None

    def could_match(self, tenant: str, topic: str, risk: Risk) -> bool:
        return (
            risk in self.risks
            and (self.tenant is None or bool(self.tenant(tenant)))
            and (self.topic is None or bool(self.topic(topic)))
        )

    def fits(self, job: Job) -> bool:
        """Of a job whose tenant, topic and risk match: whether all but the expression does."""
        for label, matcher in self.labels:
            value = job.labels.get(label)
            if value is None or not (matcher is None or matcher(value)):
                return False
        return self.actor is None or bool(self.actor(job.actor))

    def decision_for(self, job: Job) -> Decision:
        if self.limits is None:
            return self.decision
        per, rate, concurrency = self.limits
        scope = {
            Per.TENANT: job.tenant,
            Per.ACTOR: f"{job.tenant}/{job.actor}",
            Per.TOPIC: f"{job.tenant}/{job.topic}",
            Per.ALL: "",
        }[per]
        throttle = Throttle(key=f"{self.name}:{scope}", rate=rate, concurrency=concurrency)
        return self.decision._replace(throttle=throttle)


class _Candidates(NamedTuple):
    rules: tuple[_Rule, ...]
    reading: Reading


def still_allows(decision: Mapping[str, Any] | None, policy: Policy, job: Job) -> bool:
    """May a job that was approved under this decision run under the policy of today?

    Yes under the same version, or if it would be allowed without asking, or if what is asked for today is
    no stricter than what was given.
    """
    if decision is not None and decision.get("policy") == policy.version:
        return True
    today = policy.decide(job)
    if today.event is not Event.REQUIRE_APPROVAL:
        return today.event is Event.ALLOW
    given = (decision or {}).get("approval")
    if given is None or today.approval is None:
        return False
    return _is_enough(msgspec.convert(given, ApprovalDemand), today.approval) and _says_enough(given, today.approval)


def bounds_today(decision: Mapping[str, Any] | None, policy: Policy, job: Job) -> dict[str, Any]:
    """What of a job that was approved under this decision changes, so that it has no more than it may have today."""
    if decision is not None and decision.get("policy") == policy.version:
        return {}
    constraints = policy.decide(job).constraints
    return {} if constraints is None else constrained(job, constraints)


def _is_enough(given: ApprovalDemand, asked: ApprovalDemand) -> bool:
    return (
        (not asked.approvers or set(asked.approvers) == set(given.approvers))
        and asked.quorum <= given.quorum
        and asked.expires_s >= given.expires_s
        and (given.separate or not asked.separate)
    )


def _says_enough(given: Mapping[str, Any], asked: ApprovalDemand) -> bool:
    """Whether what was said could be said today. A yes with an answer is a yes as well, but an answer to something else is none."""
    terms, said = terms_of(asked, message=""), Choice(given.get("decision", Choice.APPROVE))
    is_said = terms.allows(said) or (said is Choice.RESPOND and terms.allows(Choice.APPROVE))
    is_other = "response" in given and terms.response_schema not in (None, given.get("response_schema"))
    return is_said and not is_other


def consequences(job: Job, decision: Decision) -> dict[str, Any]:
    """What a decision changes of the job beside its state: the job keeps it, and has no more than it may."""
    bounds = {} if decision.constraints is None else constrained(job, decision.constraints)
    return {"decision": recorded(decision), **bounds}


def constrained(job: Job, constraints: Constraints) -> dict[str, Any]:
    """What of the job changes, so that it has no more than it may."""
    changes: dict[str, Any] = {}
    if constraints.max_attempts is not None:
        changes["max_attempts"] = min(job.max_attempts, constraints.max_attempts)
    if constraints.priority_max is not None:
        changes["priority"] = min(job.priority, constraints.priority_max)
    if constraints.timeout_s is not None:
        latest = job.created_at + constraints.timeout_s
        changes["deadline"] = latest if job.deadline is None else min(job.deadline, latest)
    if constraints.labels:
        changes["labels"] = {**job.labels, **constraints.labels}
    return changes


def _matcher(globs: written.Globs | None) -> Matcher | None:
    """None where everything matches."""
    given = written.globs(globs)
    if not given or "*" in given:
        return None
    if not any("*" in glob for glob in given):
        return frozenset(given).__contains__
    pattern = "|".join(".*".join(re.escape(part) for part in glob.split("*")) for glob in given)
    return re.compile(pattern, re.DOTALL).fullmatch


def _list(risks: Risk | list[Risk]) -> list[Risk]:
    return [risks] if isinstance(risks, Risk) else risks
