"""What can be asked about the policy, as values; see `asks`."""

from __future__ import annotations

from typing import Any

from holdfast.api.policies import (
    PolicyVersionPage,
    PolicyVersionView,
    PolicyView,
    PublishPolicy,
    RollBackPolicy,
    SimulatePolicy,
    Simulation,
)
from holdfast.client.asks import Ask, get_ask, post_ask, read_as, said_by


def policy() -> Ask[PolicyView]:
    """The active version of the policy, and the one that the plane which answers uses."""
    return get_ask("/v1/policy", read_as(PolicyView))


def policy_versions(*, cursor: str | None = None, limit: int = 100) -> Ask[PolicyVersionPage]:
    """A page of versions, newest first, without their documents."""
    return get_ask("/v1/policy/versions", read_as(PolicyVersionPage), ("cursor", cursor), ("limit", limit))


def policy_version(version: int) -> Ask[PolicyVersionView]:
    """One version of the policy, with its document."""
    return get_ask(f"/v1/policy/versions/{version}", read_as(PolicyVersionView))


def publish_policy(document: Any, *, reason: str, expected: int | None = None, by: str = "") -> Ask[PolicyView]:
    """The document as the next version, active at once. With `expected`, only if that version is active now."""
    body = PublishPolicy(document=document, reason=reason)
    return post_ask("/v1/policy:publish", read_as(PolicyView), body, headers=_said(by, expected))


def roll_back_policy(version: int, *, reason: str, expected: int | None = None, by: str = "") -> Ask[PolicyView]:
    """An older version, active again."""
    body = RollBackPolicy(version=version, reason=reason)
    return post_ask("/v1/policy:rollback", read_as(PolicyView), body, headers=_said(by, expected))


def simulate_policy(document: Any, *, jobs: int = 1000) -> Ask[Simulation]:
    """What a draft would have decided about the newest jobs. Changes nothing."""
    body = SimulatePolicy(document=document, jobs=jobs)
    return post_ask("/v1/policy:simulate", read_as(Simulation), body, repeatable=True)


def _said(by: str, expected: int | None) -> dict[str, str]:
    """Who says it, and of which version they know."""
    return said_by(by) if expected is None else {**said_by(by), "if-match": f'"{expected}"'}
