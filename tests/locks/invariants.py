"""The promises L1-L8 of the lock, as checkers over what a store and a resource really did.

L1 TokenOrder      fences of one key only grow
L2 OwnerOnly       release and renew change a key only for its unexpired holder
L3 StoreExclusion  at most one unexpired holder at any moment
L4 FencedAccept    what a resource accepts carries growing (fence, seq)
L5 NoLostAck       every acknowledged update is in the final value, and nothing else
L6 SelfStop        no guarded call starts after sent_at + ttl - margin
L7 Progress        a holder gone, some waiter is granted within the bound
L8 AcquireIdem     the same token gets the same grant; a lost reply costs no second fence
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.locks import StaleFence
from holdfast.locks.fence import NO_MARK, Mark, rule
from holdfast.locks.lease import Lease
from holdfast.locks.port import Busy, Grant, Renewal, Standing

#: Stores count expiry in whole milliseconds.
ROUNDING_S = 0.0011


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request as its sender meant it."""

    verb: str
    who: str
    sent_at: float
    key: str = ""
    token: str = ""
    ttl_ms: int = 0
    queue_ms: int = 0
    renewals: tuple[Renewal, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the store did with one key for one token."""

    at: float
    verb: str
    who: str
    key: str
    token: str
    ttl_s: float
    answer: Grant | Busy | Standing | bool


@dataclass(frozen=True)
class Tenure:
    """One token's time with a key, as the store kept it; `end` moved on with each renewal."""

    key: str
    token: str
    fence: int
    start: float
    end: float


@dataclass
class History:
    """Everything the store did, in its order; and every attempt, done or not."""

    changes: list[Change] = field(default_factory=list)
    attempts: list[tuple[float, str, str]] = field(default_factory=list)

    def record(self, sent: Call, answer: Any, *, at: float) -> None:
        if sent.verb == "renew":
            for renewal, standing in zip(sent.renewals, answer, strict=True):
                ttl_s = renewal.ttl_ms / 1000
                self._add(sent, at, renewal.key, renewal.token, ttl_s, standing)
        else:
            self._add(sent, at, sent.key, sent.token, sent.ttl_ms / 1000, answer)

    def _add(self, sent: Call, at: float, key: str, token: str, ttl_s: float, answer: Any) -> None:
        change = Change(at=at, verb=sent.verb, who=sent.who, key=key, token=token, ttl_s=ttl_s, answer=answer)
        self.changes.append(change)

    def tried(self, verb: str, who: str = "") -> int:
        return sum(1 for _, name, whose in self.attempts if name == verb and who in ("", whose))

    def grants(self, key: str = "") -> list[Change]:
        return [c for c in self.changes if isinstance(c.answer, Grant) and key in ("", c.key)]

    def tenures(self) -> list[Tenure]:
        """Who held what and until when, from the answers alone."""
        open_: dict[tuple[str, str], Tenure] = {}
        done: list[Tenure] = []
        for change in self.changes:
            holding = open_.get((change.key, change.token))
            if holding is not None and change.at > holding.end + ROUNDING_S:
                done.append(open_.pop((change.key, change.token)))
                holding = None
            match change.answer:
                case Grant(fence):
                    start = holding.start if holding and holding.fence == fence else change.at
                    moved = Tenure(change.key, change.token, fence, start, change.at + change.ttl_s)
                    open_[change.key, change.token] = moved
                case Standing.OWNED if holding is not None:
                    moved = Tenure(*_first_four(holding), change.at + change.ttl_s)
                    open_[change.key, change.token] = moved
                case True if holding is not None:
                    done.append(Tenure(*_first_four(holding), change.at))
                    del open_[change.key, change.token]
        return sorted([*done, *open_.values()], key=lambda tenure: (tenure.key, tenure.start, tenure.fence))


def _first_four(tenure: Tenure) -> tuple[str, str, int, float]:
    return tenure.key, tenure.token, tenure.fence, tenure.start


def check_history(history: History) -> None:
    """L1, L2, L3 and L8, over one store that keeps what it acknowledged."""
    check_token_order(history)
    check_owner_only(history)
    check_store_exclusion(history)
    check_acquire_idempotence(history)


def check_token_order(history: History) -> None:
    for key, tenures in _by_key(history):
        fences = [tenure.fence for tenure in tenures]
        assert fences == sorted(set(fences)), f"L1: fences of {key} do not grow: {fences}"


def check_owner_only(history: History) -> None:
    """A yes to a release or a renewal must have come from the holder, and a no from somebody else."""
    by_key = dict(_by_key(history))
    for change in history.changes:
        if change.verb not in ("release", "renew"):
            continue
        mine = [t for t in by_key.get(change.key, []) if t.token == change.token]
        inside = any(t.start <= change.at <= t.end + ROUNDING_S for t in mine)
        well_inside = any(t.start <= change.at < t.end - ROUNDING_S for t in mine)
        if change.answer in (True, Standing.OWNED):
            assert inside or not mine, f"L2: {change} was answered yes though its lease had ended"
        else:
            assert not well_inside, f"L2: {change} was answered no though its lease was open"


def check_store_exclusion(history: History) -> None:
    for key, tenures in _by_key(history):
        for earlier, later in itertools.pairwise(tenures):
            assert later.start >= earlier.end - ROUNDING_S, f"L3: {key} had two holders: {earlier} and {later}"


def check_acquire_idempotence(history: History) -> None:
    """A token has one fence per tenure: a repeat brings the same, and never burns another."""
    tenures = history.tenures()
    for change in history.grants():
        held = [t for t in tenures if t.token == change.token and t.start <= change.at <= t.end + ROUNDING_S]
        assert isinstance(change.answer, Grant)
        assert {t.fence for t in held} == {change.answer.fence}, f"L8: {change} got another fence than {held}"


def check_progress(history: History, key: str, *, gone_at: float, within_s: float) -> None:
    """L7: somebody was granted `key` soon after its holder had gone."""
    after = [grant.at for grant in history.grants(key) if grant.at >= gone_at]
    assert after, f"L7: nobody was granted {key} after {gone_at}"
    assert min(after) - gone_at <= within_s, f"L7: {key} lay idle for {min(after) - gone_at:.3f} s"


def _by_key(history: History) -> Iterator[tuple[str, list[Tenure]]]:
    found: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in history.tenures():
        found[tenure.key].append(tenure)
    yield from found.items()


class Told:
    """An `Observer` that remembers: the name of each event, and its values."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def remember(*_: object, **values: object) -> None:
            self.events.append((name, values))

        return remember

    def count(self, name: str) -> int:
        return sum(1 for event, _ in self.events if event == name)

    def values(self, name: str, value: str) -> list[Any]:
        return [values[value] for event, values in self.events if event == name]


@dataclass
class Resource:
    """What a lock protects, with the fence rule of the library: a set that keeps what it accepted."""

    name: str = "resource"
    mark: Mark = NO_MARK
    accepted: list[tuple[Mark, str]] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    refused: list[Mark] = field(default_factory=list)

    def offer(self, fence: int, seq: int, operation: str) -> bool:
        """True if accepted now, False if it is a repeat of the last; raises `StaleFence`."""
        offered = Mark(fence, seq)
        ruling = rule(self.mark, offered)
        if not ruling.accepted:
            self.refused.append(offered)
            raise StaleFence(self.name, current=self.mark, offered=offered)
        if ruling.repeated:
            return False
        self.mark = offered
        self.accepted.append((offered, operation))
        return True

    def read(self, fence: int, seq: int) -> tuple[str, ...]:
        self.offer(fence, seq, "read")
        return tuple(self.values)

    def write(self, fence: int, seq: int, values: tuple[str, ...]) -> None:
        """Replace the whole value, as a read-modify-write does."""
        if self.offer(fence, seq, "write"):
            self.values = list(values)

    def append(self, lease: Lease, value: str) -> None:
        """The holder's whole read-modify-write, acknowledged."""
        lease.check()
        before = self.read(lease.fence, lease.next_seq())
        self.write(lease.fence, lease.next_seq(), (*before, value))
        self.acknowledged.append(value)


def check_fenced_accept(resource: Resource) -> None:
    marks = [mark for mark, _ in resource.accepted]
    assert marks == sorted(set(marks)), f"L4: {resource.name} accepted {marks}"


def check_no_lost_ack(resource: Resource, *, sent: set[str] | None = None) -> None:
    lost = set(resource.acknowledged) - set(resource.values)
    assert not lost, f"L5: acknowledged and lost: {lost}"
    never_sent = set(resource.values) - (sent or set(resource.acknowledged))
    assert not never_sent, f"L5: in the value, but never sent: {never_sent}"


def check_self_stop(lease: Lease, started_at: float) -> None:
    """L6: a guarded call that started at `started_at` was inside the trust window."""
    end = lease.belief.sent_at + lease.lock_class.ttl - lease.lock_class.renewal.margin_s
    assert started_at < end, f"L6: a call under {lease} started {started_at - end:.3f} s after its window"
