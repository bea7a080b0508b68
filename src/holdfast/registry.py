"""The worker registry: who is there, what each can do, and who has not been heard of.

In memory, fed by what workers say; a snapshot in the store lets another replica start warm. A
worker that a snapshot knows is not alive until it speaks: a snapshot revives nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from holdfast import api
from holdfast.core.placement import WorkerView
from holdfast.errors import NotFound
from holdfast.ports import Snapshot

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S
"""Without a word for this long a worker gets nothing more."""
FORGET_S = 3600.0


@dataclass(slots=True, kw_only=True)
class Member:
    hello: api.Hello
    last_seen: float
    draining: bool = False
    doubted: bool = False
    """One of its leases ran out: it gets nothing more until it speaks again."""
    in_hand: set[str] = field(default_factory=set)
    """Ids of the jobs that were dispatched to it and have not ended."""
    just_taken: set[str] = field(default_factory=set)
    """Those of them that may be on their way to the store: given to it since the store was last looked at."""


class Registry:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._worker_of: dict[str, str] = {}
        self._snapshot: Snapshot | None = None

    def hello(self, hello: api.Hello, *, now: float) -> api.HelloReply:
        """Register, or refresh what is known. Answers with those it may have replaced."""
        known = self._members.get(hello.worker)
        if known is None:
            self._members[hello.worker] = Member(hello=hello, last_seen=now)
        else:
            known.hello, known.last_seen, known.draining, known.doubted = hello, now, False, False
        predecessors = [
            worker
            for worker, member in self._members.items()
            if worker != hello.worker
            and member.hello.name == hello.name
            and member.hello.host == hello.host
            and hello.host
        ]
        return api.HelloReply(heartbeat_s=HEARTBEAT_S, predecessors=predecessors)

    def seen(self, worker: str, *, now: float) -> None:
        """Any word of a worker is a heartbeat. Raises `NotFound`: it must say hello first."""
        member = self._members.get(worker)
        if member is None:
            raise NotFound(f"worker {worker!r} is not registered; say hello")
        member.last_seen, member.doubted = now, False

    def doubt(self, worker: str) -> None:
        """A lease of its expired: whatever it was last heard to say, it does not answer now."""
        if worker in self._members:
            self._members[worker].doubted = True

    def drain(self, worker: str) -> None:
        """Give it nothing more."""
        if worker not in self._members:
            raise NotFound(f"worker {worker!r} is not registered")
        self._members[worker].draining = True

    def gone(self, worker: str) -> None:
        member = self._members.pop(worker, None)
        for job_id in member.in_hand if member is not None else ():
            self._unlink(job_id, worker)

    def workers(self) -> list[str]:
        return list(self._members)

    def took(self, worker: str, job_id: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            self.freed(job_id)  # by whoever had it: the news may have been lost
            member.in_hand.add(job_id)
            member.just_taken.add(job_id)
            self._worker_of[job_id] = worker

    def freed(self, job_id: str) -> None:
        member = self._members.get(self._worker_of.pop(job_id, ""))
        if member is not None:
            member.in_hand.discard(job_id)
            member.just_taken.discard(job_id)

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

    def candidates(self) -> list[WorkerView]:
        return [_view(worker, member) for worker, member in self._members.items()]

    def silent(self, *, now: float) -> list[str]:
        """Workers that are not believed alive: not heard of for too long, or doubted."""
        return [
            worker for worker, member in self._members.items() if member.doubted or now - member.last_seen >= SILENT_S
        ]

    def forget_old(self, *, now: float) -> None:
        for worker in [w for w, member in self._members.items() if now - member.last_seen >= FORGET_S]:
            self.gone(worker)

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
                alive=not member.doubted and now - member.last_seen < SILENT_S,
            )
            for worker, member in sorted(self._members.items())
        ]

    def snapshot_age(self, *, now: float) -> float | None:
        return None if self._snapshot is None else now - self._snapshot.at

    def to_snapshot(self, *, fence: int, seq: int, now: float) -> Snapshot:
        kept = [(member.hello, member.last_seen, member.draining) for member in self._members.values()]
        return Snapshot(fence, seq, now, msgspec.json.encode(kept))

    def wrote(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def warm_up(self, snapshot: Snapshot) -> None:
        """Take over what another replica knew. Last words stay as old as they are."""
        self._snapshot = snapshot
        for hello, last_seen, draining in msgspec.json.decode(
            snapshot.workers, type=list[tuple[api.Hello, float, bool]]
        ):
            known = self._members.get(hello.worker)
            if known is None:
                self._members[hello.worker] = Member(hello=hello, last_seen=last_seen, draining=draining)
            elif last_seen > known.last_seen:
                # It spoke to the other replica in the meantime.
                known.last_seen, known.doubted = last_seen, False

    def _unlink(self, job_id: str, worker: str) -> None:
        # Another worker may have it by now.
        if self._worker_of.get(job_id) == worker:
            del self._worker_of[job_id]


def _view(worker: str, member: Member) -> WorkerView:
    hello = member.hello
    return WorkerView(
        id=worker,
        pool=hello.pool,
        topics=tuple(hello.topics),
        labels=hello.labels,
        slots=hello.slots,
        backlog=hello.backlog,
        in_hand=len(member.in_hand),
        draining=member.draining,
        last_seen=float("-inf") if member.doubted else member.last_seen,
    )


def with_one_more(view: WorkerView) -> WorkerView:
    return replace(view, in_hand=view.in_hand + 1)
