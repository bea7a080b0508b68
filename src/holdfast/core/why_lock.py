"""Why a lock is as it is: who has it, whether they live, who waits, and how often it was lost before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.core.why import Finding, Reason, finding, ranked
from holdfast.core.why_facts import LockFacts
from holdfast.locks.policy import Pattern
from holdfast.locks.port import Ownership


class Expiry(NamedTuple):
    """A lease that ended without a release: the next grant shows it."""

    fence: int
    holder: str
    granted_at: float
    next_at: float


def expiries(history: Sequence[Ownership]) -> list[Expiry]:
    """Grants that were followed by a grant to somebody else."""
    return [
        Expiry(first.fence, first.holder, first.at, then.at)
        for first, then in pairwise(history)
        if first.event == then.event == "granted" and first.fence != then.fence
    ]


def why_lock(facts: LockFacts) -> list[Finding]:
    """Never empty."""
    found = [_free(facts) if facts.holder is None else _held(facts)]
    if facts.holder is not None and facts.holder.waiters:
        found.append(_queue(facts))
    ended = [] if facts.lock_class.pattern is Pattern.TTL_HOLD else expiries(facts.history)
    if ended:
        found.append(_expired(facts, ended))
    return ranked(found)


def _free(facts: LockFacts) -> Finding:
    last = facts.history[-1] if facts.history else None
    if last is None:
        return finding(Reason.LOCK_FREE, "nobody holds it, and nobody is known to have held it lately")
    how = {"released": "gave it back", "evicted": "was evicted"}.get(last.event, "let it run out")
    return finding(
        Reason.LOCK_FREE,
        f"nobody holds it; {last.holder} {how}",
        since=last.at if last.event != "granted" else None,
        then=(f"holdfast lock history {facts.key}",),
        last_holder=last.holder,
        last_fence=last.fence,
        note=last.note,
    )


def _held(facts: LockFacts) -> Finding:
    holder, chosen = facts.holder, facts.lock_class
    assert holder is not None
    since = next((line.at for line in reversed(facts.history) if line.fence == holder.fence), None)
    left = holder.remaining_ms / 1000
    evidence: dict[str, Any] = {
        "class": chosen.name,
        "holder": holder.holder,
        "fence": holder.fence,
        "ttl_s": chosen.ttl,
        "remaining_s": round(left, 3),
        "waiters": holder.waiters,
    }
    until = facts.now + left
    if facts.is_holder_gone:
        return finding(
            Reason.HOLDER_GONE,
            f"the process of {holder.holder}, which holds it, is gone; it runs out in {left:.0f} s",
            since=since,
            until=until,
            who="nobody, if you can wait; an operator, if not",
            then=(f"holdfast lock evict {facts.key} --fence {holder.fence} --reason TEXT",),
            **evidence,
        )
    if chosen.pattern is Pattern.TTL_HOLD:
        return finding(
            Reason.WINDOW_HELD,
            f"{holder.holder} has claimed the window, which is kept to its end on purpose",
            since=since,
            until=until,
            **evidence,
        )
    return finding(
        Reason.LOCK_HELD,
        f"{holder.holder} holds it and has kept it up to {chosen.ttl - left:.0f} s ago",
        since=since,
        until=until,
        then=(f"holdfast lock history {facts.key}",),
        **evidence,
    )


def _queue(facts: LockFacts) -> Finding:
    assert facts.holder is not None
    return finding(
        Reason.LOCK_QUEUE,
        f"{facts.holder.waiters} wait for it, in order of their coming",
        then=(f"holdfast lock show {facts.key}",),
        waiters=facts.holder.waiters,
        wait_budget_s=facts.lock_class.wait,
    )


def _expired(facts: LockFacts, ended: Sequence[Expiry]) -> Finding:
    last = ended[-1]
    return finding(
        Reason.LOCK_EXPIRIES,
        f"{len(ended)} of its leases ran out without being given back; the last was {last.holder}'s",
        since=last.next_at,
        then=("holdfast doctor", f"holdfast lock history {facts.key}"),
        expiries=len(ended),
        last_holder=last.holder,
        last_fence=last.fence,
    )
