"""The worker registry: who is there, what each can do, and who has not been heard of.

In memory, fed by what workers say to this process, and by what other processes tell of theirs
(`attendance`); a snapshot in the store lets one start warm. A worker that a snapshot knows is not
alive until it speaks: a snapshot revives nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast import api
from holdfast.core.job import Job
from holdfast.core.placement import WorkerView, condition
from holdfast.core.ranks import Ranks
from holdfast.errors import NotFound
from holdfast.ports import Snapshot

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S
"""Without a word for this long a worker gets nothing more."""
FORGET_S = 3600.0
STUCK_S = SILENT_S
"""A worker that speaks, and lets what was sent to it lie for this long, gets nothing more until it has taken it."""
GONE_S = 2 * SILENT_S
"""So long it is remembered that a worker has left: what a scheduler sent to it before it knew is called back."""


class Word(NamedTuple):
    """What one process tells another of a worker. Of two such words on the same worker the later one holds."""

    hello: api.Hello
    last_seen: float
    draining: bool
    gone: bool
    changed_at: float
    """When anything but `last_seen` was last said."""


@dataclass(slots=True, kw_only=True)
class Member:
    hello: api.Hello
    last_seen: float
    draining: bool = False
    gone: bool = False
    changed_at: float
    doubted_at: float = float("-inf")
    """One of its leases ran out then: it gets nothing more until it speaks again."""
    heard_here: bool = True
    """Its last word was said to this process."""
    stuck: bool = False
    """It has let something lie that was sent to it, by the last look at the store."""
    in_hand: set[str] = field(default_factory=set)
    """Ids of the jobs that were dispatched to it and have not ended."""
    just_taken: set[str] = field(default_factory=set)
    """Those of them that may be on their way to the store: given to it since the store was last looked at."""
    viewed: tuple[api.Hello, WorkerView] | None = None
    """As a scheduler saw it last, by what it had said then."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Word]).decode


class Registry:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._ranks = Ranks()
        self._moved: set[str] = set()
        """Members of whom anything has changed since they were ranked."""
        self._worker_of: dict[str, str] = {}
        self._snapshot: Snapshot | None = None
        self.on_change: Callable[[], None] = _nobody
        """Called when a worker has come, drains or has gone, by what was said here."""

    def hello(self, hello: api.Hello, *, now: float) -> api.HelloReply:
        """Register, or refresh what is known. Answers with those it may have replaced."""
        known = self._members.get(hello.worker)
        if known is None or known.gone:
            self._members[hello.worker] = Member(hello=hello, last_seen=now, changed_at=now)
            self._moved.add(hello.worker)
            self.on_change()
        elif known.hello == hello and not known.draining:
            self.seen(hello.worker, now=now)
        else:
            # What it is able to changes while it runs; whoever drained it meant it until it is started anew.
            is_same_run = hello.unable != known.hello.unable
            known.hello, known.draining, known.changed_at = hello, known.draining and is_same_run, now
            self.seen(hello.worker, now=now)
            self.on_change()
        predecessors = [
            worker
            for worker, member in self._present()
            if worker != hello.worker
            and member.hello.name == hello.name
            and member.hello.host == hello.host
            and hello.host
        ]
        return api.HelloReply(heartbeat_s=HEARTBEAT_S, predecessors=predecessors)

    def seen(self, worker: str, *, now: float) -> None:
        """Any word of a worker is a heartbeat. Raises `NotFound`: it must say hello first."""
        member = self._members.get(worker)
        if member is None or member.gone:
            raise NotFound(f"worker {worker!r} is not registered; say hello")
        member.last_seen, member.doubted_at, member.heard_here = now, float("-inf"), True
        self._moved.add(worker)

    def doubt(self, worker: str, *, now: float) -> None:
        """A lease of its expired: whatever it was last heard to say, it does not answer now."""
        if worker in self._members:
            self._members[worker].doubted_at = now
            self._moved.add(worker)

    def drain(self, worker: str, *, now: float) -> None:
        """Give it nothing more."""
        member = self._members.get(worker)
        if member is None or member.gone:
            raise NotFound(f"worker {worker!r} is not registered")
        member.draining, member.changed_at, member.heard_here = True, now, True
        self._moved.add(worker)
        self.on_change()

    def gone(self, worker: str, *, now: float) -> None:
        """It will not come again under this name; who has not heard of that yet is told."""
        member = self._members.get(worker)
        if member is not None:
            member.gone, member.changed_at, member.heard_here = True, now, True
            self._moved.add(worker)
            self._empty(worker, member)
            self.on_change()

    def workers(self) -> list[str]:
        return [worker for worker, _ in self._present()]

    def took(self, worker: str, job_id: str) -> None:
        member = self._members.get(worker)
        if member is not None and not member.gone:
            self.freed(job_id)  # by whoever had it: the news may have been lost
            member.in_hand.add(job_id)
            member.just_taken.add(job_id)
            self._worker_of[job_id] = worker
            self._moved.add(worker)

    def freed(self, job_id: str) -> None:
        worker = self._worker_of.pop(job_id, "")
        member = self._members.get(worker)
        if member is not None:
            member.in_hand.discard(job_id)
            member.just_taken.discard(job_id)
            self._moved.add(worker)

    def in_hand(self, worker: str) -> int:
        """How many jobs were dispatched to it and have not ended."""
        member = self._members.get(worker)
        return 0 if member is None else len(member.in_hand)

    def holds(self, worker: str, job_ids: Iterable[str]) -> None:
        """What the store says the worker has in hand: corrects whatever a lost event left behind.

        What was given to it since the last look is left to the next one: it may not be written yet.
        """
        member = self._members.get(worker)
        if member is not None:
            held = member.just_taken.union(job_ids)
            for stale in member.in_hand - held:
                self._unlink(stale, worker)
            member.in_hand, member.just_taken = held, set()
            self._worker_of.update(dict.fromkeys(held, worker))
            self._moved.add(worker)

    def lies_there(self, worker: str, *, for_s: float, running: int) -> None:
        """For how long something has been waiting for the worker to take it; 0: nothing does. What waits for one of its
        slots is no news: it asked for a backlog."""
        member = self._members.get(worker)
        if member is not None:
            member.stuck = for_s >= STUCK_S and running < member.hello.slots
            self._moved.add(worker)

    def lost(self, job_id: str, *, now: float) -> None:
        """The lease of this job ran out: see `doubt`."""
        self.doubt(self._worker_of.get(job_id, ""), now=now)

    def candidates(self) -> list[WorkerView]:
        return [_view(worker, member) for worker, member in self._present()]

    def candidates_for(self, jobs: Collection[Job], *, alive_since: float, kept: int) -> list[WorkerView]:
        """Those of the candidates on whom these jobs would be placed, and not many more: see `Ranks.first`."""
        for worker in self._moved:
            member = self._members[worker]
            if member.gone:
                self._ranks.drop(worker)
            else:
                self._ranks.put(_view(worker, member), alive_since=alive_since)
        self._moved.clear()
        return self._ranks.first(jobs, alive_since=alive_since, kept=kept)

    def silent(self, *, now: float) -> list[str]:
        """Workers that are not believed alive: gone, not heard of for too long, or doubted."""
        return [worker for worker, member in self._members.items() if member.gone or not _is_alive(member, now)]

    def may_hold(self, worker: str) -> bool:
        """Whether something may be in its hands. Of one that has gone it is not kept what is sent to it."""
        member = self._members.get(worker)
        return member is not None and (member.gone or bool(member.in_hand))

    def forget_old(self, *, now: float) -> None:
        for worker, member in tuple(self._members.items()):
            if now - (member.changed_at if member.gone else member.last_seen) >= (GONE_S if member.gone else FORGET_S):
                self._empty(worker, member)
                del self._members[worker]
                self._moved.discard(worker)
                self._ranks.drop(worker)
            elif not _is_alive(member, now):
                self._moved.add(worker)  # it goes to the end of its rank: nobody need step over it

    def views(self, *, now: float) -> list[api.WorkerInfo]:
        return [
            api.WorkerInfo(
                id=worker,
                name=member.hello.name,
                pool=member.hello.pool,
                topics=member.hello.topics,
                labels=member.hello.labels,
                slots=member.hello.slots,
                backlog=member.hello.backlog,
                in_hand=len(member.in_hand),
                draining=member.draining,
                last_seen=member.last_seen,
                alive=_is_alive(member, now),
                condition=condition(_view(worker, member), alive_since=now - SILENT_S),
                unable=member.hello.unable,
            )
            for worker, member in sorted(self._present())
        ]

    def snapshot_age(self, *, now: float) -> float | None:
        return None if self._snapshot is None else now - self._snapshot.at

    def told(self) -> bytes:
        """What other processes should hear: of those whose last word was said here."""
        return _encode([_word_on(member) for member in self._members.values() if member.heard_here])

    def learn(self, told: bytes) -> bool:
        """What another process has told. Last words stay as old as they are. True: there may be room that was not known.

        Raises `msgspec.DecodeError`.
        """
        news = [self._learn(word) for word in _decode(told)]
        return any(news)

    def to_snapshot(self, *, fence: int, seq: int, now: float) -> Snapshot:
        return Snapshot(fence, seq, now, _encode([_word_on(member) for _, member in self._present()]))

    def wrote(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def warm_up(self, snapshot: Snapshot) -> None:
        """Take over what another replica knew. Raises `msgspec.DecodeError`."""
        self._snapshot = snapshot
        self.learn(snapshot.workers)

    def _learn(self, word: Word) -> bool:
        worker = word.hello.worker
        self._moved.add(worker)
        known = self._members.get(worker)
        if known is None:
            self._members[worker] = Member(**word._asdict(), heard_here=False)
            return True
        has_changed = word.changed_at > known.changed_at
        if has_changed:
            known.hello, known.draining, known.gone, known.changed_at = (
                word.hello,
                word.draining,
                word.gone,
                word.changed_at,
            )
            if known.gone:
                self._empty(worker, known)
        if word.last_seen > known.last_seen:
            # It speaks to the other one now, which tells everybody of it.
            known.last_seen, known.heard_here = word.last_seen, False
        return has_changed

    def _present(self) -> list[tuple[str, Member]]:
        return [(worker, member) for worker, member in self._members.items() if not member.gone]

    def _empty(self, worker: str, member: Member) -> None:
        for job_id in member.in_hand:
            self._unlink(job_id, worker)
        member.in_hand, member.just_taken = set(), set()

    def _unlink(self, job_id: str, worker: str) -> None:
        # Another worker may have it by now.
        if self._worker_of.get(job_id) == worker:
            del self._worker_of[job_id]


def _is_alive(member: Member, now: float) -> bool:
    return member.last_seen > member.doubted_at and now - member.last_seen < SILENT_S


def _word_on(member: Member) -> Word:
    return Word(member.hello, member.last_seen, member.draining, member.gone, member.changed_at)


def _nobody() -> None: ...


def _view(worker: str, member: Member) -> WorkerView:
    hello = member.hello
    last_seen = member.last_seen if member.last_seen > member.doubted_at else float("-inf")
    if member.viewed is not None:
        known_by, known = member.viewed
        changing = (known.in_hand, known.last_seen, known.draining, known.stuck)
        if known_by is hello and changing == (len(member.in_hand), last_seen, member.draining, member.stuck):
            return known  # most workers have nothing new to say between two jobs of anybody's
    view = WorkerView(
        id=worker,
        pool=hello.pool,
        topics=tuple(hello.topics),
        labels=hello.labels,
        slots=hello.slots,
        backlog=hello.backlog,
        in_hand=len(member.in_hand),
        draining=member.draining,
        last_seen=last_seen,
        stuck=member.stuck,
        unable=hello.unable,
    )
    member.viewed = hello, view
    return view
