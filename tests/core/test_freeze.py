"""Freezes: what a scope covers, and until when."""

from __future__ import annotations

import pytest

from holdfast.core.freeze import Freeze, check_scope, freeze_from, freeze_record, frozen_by
from holdfast.core.job import Tenant
from holdfast.errors import Invalid


def freeze(scope: str, until: float | None = None) -> Freeze:
    return Freeze(scope=scope, reason="x", since=0.0, until=until)


@pytest.mark.parametrize(
    ("scope", "tenant", "topic", "covered"),
    [
        ("all", "acme", "mail.send", True),
        ("tenant=acme", "acme", "mail.send", True),
        ("tenant=acme", "acme2", "mail.send", False),
        ("topic=mail.send", "acme", "mail.send", True),
        ("topic=mail.send", "acme", "mail.send.now", False),
        ("topic=mail.*", "acme", "mail.send", True),
        ("topic=mail.*", "acme", "mail", False),
    ],
)
def test_a_scope_covers_what_it_names(scope: str, tenant: str, topic: str, covered: bool) -> None:
    found = frozen_by([freeze(scope)], now=1.0).find(Tenant(tenant), topic)

    assert (found is not None) is covered


@pytest.mark.parametrize(
    "scope", ["", "ALL", "all ", "tenant=", "tenant=a b", "topic=*", "topic=a*b", "pool=x", "all\n"]
)
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(Invalid, match="tenant=NAME"):
        check_scope(scope)


def test_a_freeze_ends_at_its_time_whoever_sees_to_it() -> None:
    frozen = [freeze("topic=a", until=10.0), freeze("tenant=b"), freeze("all", until=20.0)]

    early, late, last = (frozen_by(frozen, now=now) for now in (9.9, 10.0, 20.0))

    assert [one.scope for one in early.freezes] == ["all", "tenant=b", "topic=a"], "the widest first"
    assert (early.everything, list(early.topics), list(early.tenants)) == (True, ["a"], ["b"])
    assert (late.everything, list(late.topics)) == (True, [])
    assert (last.everything, list(last.tenants)) == (False, ["b"])


def test_it_comes_back_as_it_was_stored() -> None:
    stored = freeze_record(freeze("topic=mail.*", until=5.0))

    assert (stored.id, stored.due, stored.state) == ("topic=mail.*", 5.0, "topic")
    assert freeze_from(stored) == Freeze(scope="topic=mail.*", reason="x", since=0.0, until=5.0, version=1)
