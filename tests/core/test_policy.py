"""The policy: the first rule that matches decides, and what cannot be evaluated is decided by risk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.decision import ApprovalDemand, Decision, Rate, Throttle, demand_of, recorded, told
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.policy import Rulebook, constrained, still_allows
from holdfast.core.states import Event, Risk
from holdfast.core.topic import Topic
from holdfast.flow.submit import Order, new_job

DENY = {"action": "deny", "reason": "no rule allows it"}
ALLOW = {"action": "allow"}


def a_job(topic: str = "mail.send", payload: Any = None, **changes: Any) -> Job:
    order = Order(tenant=Tenant("acme"), topic=topic, payload=msgspec.json.encode(payload), labels={})
    return replace(new_job(order, Topic(name=topic), job_id=JobId("j1"), now=100.0), **changes)


def book(*rules: dict[str, Any], default: dict[str, Any] | None = None, version: int = 1, **more: Any) -> Rulebook:
    named = [{"name": f"r{n}", **rule} for n, rule in enumerate(rules)]
    return Rulebook(version, {"format": 1, "rules": named, "default": default or DENY, **more})


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"tenant": "acme"}, True),
        ({"tenant": "ac*"}, True),
        ({"tenant": ["other", "acme"]}, True),
        ({"tenant": "acm"}, False),
        ({"topic": "mail.*"}, True),
        ({"topic": "*.send"}, True),
        ({"topic": "mail"}, False),
        ({"topic": "mailxsend"}, False),
        ({"risk": "medium"}, True),
        ({"risk": ["low", "high"]}, False),
        ({"labels": {"env": "prod"}}, True),
        ({"labels": {"env": "pr*"}}, True),
        ({"labels": {"env": "*"}}, True),
        ({"labels": {"env": "prod", "team": "*"}}, False),
        ({"labels": {"env": "test"}}, False),
        ({"actor": "agent-*"}, True),
        ({"actor": "agent"}, False),
        ({"tenant": "acme", "topic": "sms.*"}, False),
    ],
)
def test_a_rule_matches_if_all_it_says_fits(match: dict[str, Any], fits: bool) -> None:
    job = a_job(labels={"env": "prod"}, actor="agent-7")

    decision = book({"match": match, **ALLOW}).decide(job)

    assert decision.rule == ("r0" if fits else "default")
    assert decision.event is (Event.ALLOW if fits else Event.DENY)


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ("payload.amount > 100", True),
        ("payload.amount > 1000", False),
        ("tenant == 'acme' && topic == 'mail.send' && risk == 'medium'", True),
        ("actor == '' && priority == 0 && run == '' && step == '' && session == ''", True),
        ("'env' in labels", False),
    ],
)
def test_an_expression_sees_the_job(when: str, fits: bool) -> None:
    decision = book({"when": when, **ALLOW}).decide(a_job(payload={"amount": 500}))

    assert decision.rule == ("r0" if fits else "default")


def test_the_first_match_wins() -> None:
    rules = book({"match": {"topic": "sms.*"}, **ALLOW}, {"action": "deny", "reason": "first"}, ALLOW)

    assert rules.decide(a_job())[:3] == (Event.DENY, "first", "r1")


def test_an_expression_is_asked_only_where_the_rest_fits() -> None:
    """It would fail: the payload has no such field."""
    rules = book({"match": {"labels": {"env": "prod"}}, "when": "payload.gone > 1", **ALLOW}, default=ALLOW)

    assert rules.decide(a_job(payload={})).failed == ""


@pytest.mark.parametrize(
    "when", ["payload.gone > 1", "payload", "payload.text > 1", "size(payload.text) > 1 && 1", "payload.huge > 1"]
)
@pytest.mark.parametrize(
    ("risk", "event", "failed"), [(Risk.LOW, Event.ALLOW, "open"), (Risk.HIGH, Event.DENY, "closed")]
)
def test_a_rule_that_cannot_be_evaluated_fails_by_risk(when: str, risk: Risk, event: Event, failed: str) -> None:
    rules = book({"when": when, **ALLOW}, default=ALLOW, on_failure={"low": "open"})

    decision = rules.decide(a_job(payload={"text": "hunter2", "huge": 10**400}, risk=risk))

    assert (decision.event, decision.failed, decision.rule) == (event, failed, "r0")
    assert "rule r0 cannot be evaluated" in decision.reason
    assert "hunter2" not in decision.reason


@pytest.mark.parametrize(("risk", "event"), [(Risk.LOW, Event.ALLOW), (Risk.MEDIUM, None), (Risk.HIGH, None)])
def test_a_policy_that_takes_too_long_lets_the_job_wait_or_pass(risk: Risk, event: Event | None) -> None:
    rules = book({"when": "payload.n > 1", **ALLOW}, default=ALLOW, on_failure={"low": "open"})

    decision = rules.decide(a_job(payload={"n": 1}, risk=risk), timed_out=lambda: True)

    assert (decision.event, decision.reason) == (event, "the policy took too long")


def test_a_policy_without_expressions_never_takes_too_long() -> None:
    assert book(ALLOW).decide(a_job(), timed_out=lambda: True).event is Event.ALLOW


def test_what_callers_invent_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.policy.REMEMBERED_MAX", 4)
    rules = book({"match": {"topic": "mail.*"}, **ALLOW})

    answers = {rules.decide(a_job(f"mail.{n}")).event for n in range(20)}

    assert (answers, len(rules._candidates) <= 4) == ({Event.ALLOW}, True)


def test_an_approval_is_demanded_as_written() -> None:
    asked = {"approvers": ["alice", "fin-*"], "quorum": 2, "expires_s": 60, "separate": True}

    decision = book({"action": "require_approval", "approval": asked}).decide(a_job())

    assert decision.event is Event.REQUIRE_APPROVAL
    assert decision.approval == ApprovalDemand(approvers=["alice", "fin-*"], quorum=2, expires_s=60.0, separate=True)
    assert demand_of(a_job(decision=recorded(decision))) == decision.approval


@pytest.mark.parametrize(
    ("per", "key"),
    [("tenant", "r0:acme"), ("actor", "r0:acme/bot"), ("topic", "r0:acme/mail.send"), ("all", "r0:")],
)
def test_a_throttle_counts_whom_it_says(per: str, key: str) -> None:
    limits = {"rate": "120/m", "burst": 5, "concurrency": 3, "per": per}

    decision = book({"action": "throttle", "throttle": limits}).decide(a_job(actor="bot"))

    assert decision.event is Event.ALLOW
    assert decision.throttle == Throttle(key=key, rate=Rate(0.5, 5), concurrency=3)
    assert (recorded(decision) or {})["concurrency"] == {"limit": 3, "key": key}


def test_a_job_gets_no_more_than_its_constraints() -> None:
    bounds = {"max_attempts": 2, "priority_max": 5, "timeout_s": 60, "labels": {"require.zone": "eu"}}
    decision = book({**ALLOW, "constraints": bounds}).decide(a_job())
    assert decision.constraints is not None

    greedy = constrained(a_job(priority=50, max_attempts=9, labels={"require.zone": "us"}), decision.constraints)
    modest = constrained(a_job(priority=-1, max_attempts=1, deadline=110.0), decision.constraints)

    assert greedy == {"priority": 5, "max_attempts": 2, "deadline": 160.0, "labels": {"require.zone": "eu"}}
    assert modest == {"priority": -1, "max_attempts": 1, "deadline": 110.0, "labels": {"require.zone": "eu"}}


def test_a_decision_names_rule_version_and_hash() -> None:
    rules = book({"match": {"topic": "mail.*"}, "action": "deny", "reason": "not now"}, version=7)

    kept = recorded(rules.decide(a_job()))

    assert kept == {"action": "deny", "rule": "r0", "policy": 7, "hash": rules.hash[:16], "reason": "not now"}
    assert told(a_job(decision=kept)) == kept


def test_without_a_policy_there_is_nothing_to_record() -> None:
    assert recorded(Decision(Event.ALLOW)) is None
    assert told(a_job()) == {}


def test_the_hash_is_of_what_is_said_not_of_how() -> None:
    first = Rulebook(1, {"format": 1, "default": {"action": "allow", "reason": "x"}})
    second = Rulebook(2, {"default": {"reason": "x", "action": "allow"}, "format": 1})

    assert first.hash == second.hash


def asking(version: int, **demand: Any) -> Rulebook:
    return book({"action": "require_approval", "approval": demand}, version=version)


@pytest.mark.parametrize(
    ("today", "allowed"),
    [
        (asking(1, approvers=["carol"]), True),  # the very version: nothing to compare
        (book(ALLOW, version=2), True),
        (book(version=2), False),
        (asking(2, approvers=["alice"], quorum=1, expires_s=60), True),
        (asking(2, quorum=1, expires_s=60), True),
        (asking(2, approvers=["bob"], quorum=1, expires_s=60), False),
        (asking(2, quorum=2, expires_s=60), False),
        (asking(2, approvers=["alice"], expires_s=30), False),
        (asking(2, approvers=["alice"], expires_s=60, separate=True), False),
        (book({"when": "payload.gone > 1", **ALLOW}, version=2), False),
    ],
)
def test_an_approval_holds_while_the_policy_asks_for_no_more(today: Rulebook, allowed: bool) -> None:
    job = a_job()
    given = recorded(asking(1, approvers=["alice"], quorum=1, expires_s=60).decide(job))

    assert still_allows(given, today, job) is allowed


FORM = {"type": "integer"}


@pytest.mark.parametrize(
    ("said", "today", "allowed"),
    [
        ({"decision": "approve"}, {"choices": ["approve"]}, True),
        ({"decision": "approve"}, {"choices": ["respond"], "response_schema": FORM}, False),
        ({"decision": "edit"}, {"choices": ["approve", "reject"]}, False),
        ({"decision": "respond", "response": 3, "response_schema": FORM}, {"response_schema": FORM}, True),
        ({"decision": "respond", "response": 3, "response_schema": FORM}, {}, True),
        ({"decision": "respond", "response": 3, "response_schema": FORM}, {"choices": ["edit"]}, False),
        ({"decision": "respond", "response": 3, "response_schema": FORM}, {"response_schema": {}}, False),
        ({"decision": "approve", "response": 3, "response_schema": FORM}, {"response_schema": {}}, False),
    ],
)
def test_an_approval_holds_while_what_was_said_may_be_said(
    said: dict[str, Any], today: dict[str, Any], allowed: bool
) -> None:
    job = a_job()
    given = recorded(asking(1).decide(job)) or {}

    decision = {**given, "approval": {**given["approval"], **said}}

    assert still_allows(decision, asking(2, **today), job) is allowed


def test_what_was_never_approved_is_not_allowed_by_an_approval() -> None:
    assert still_allows(None, asking(2), a_job()) is False
