"""The scheduler: gives dispatchable jobs to workers. Any number of replicas may run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.placement import PassedOver, Placing
from holdfast.core.share import Quotas, Shares, Turns, is_limited, limit_of
from holdfast.core.states import TERMINAL, State
from holdfast.core.topic import Topics
from holdfast.flow.decide import Policy
from holdfast.flow.dispatch import Dispatched, Dispatcher, Doors, Placed, Sending
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.gone import IsGone
from holdfast.locks import Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import Bus, JobEvent, Store
from holdfast.registry import SILENT_S, Registry
from holdfast.telemetry import Telemetry

BATCH = 200
OTHERS = 50
OTHERS_LISTS = 20
POLL_S = 0.25
"""The floor under the wake-ups: a job whose back-off has passed, or whose wake-up was lost, waits this long."""
POLL_S_MAX = 5.0
POLLS_APART = 10
"""So many times as long as a look takes nobody looks again who was not woken: past a hundred thousand jobs that no worker
serves a look is long, and a plane that waits would do little else."""
OF_SESSIONS_MAX = 10_000
STORE_RETRY_S = 1.0
"""After a write that the store did not answer."""


class Scheduler(Listener):
    def __init__(
        self,
        *,
        store: Store,
        bus: Bus,
        locks: Locks,
        registry: Registry,
        topics: Topics,
        policy: Policy,
        doors: Doors,
        freezes: LiveFreezes,
        telemetry: Telemetry,
        runtime: Runtime,
        is_gone: IsGone,
        quotas: Quotas | None = None,
    ) -> None:
        super().__init__("scheduler", store=store, every_s=POLL_S, runtime=runtime)
        self._registry = registry
        self._runtime = runtime
        self._freezes = freezes
        self._dispatcher = Dispatcher(
            store=store,
            bus=bus,
            locks=locks,
            topics=topics,
            policy=policy,
            doors=doors,
            freezes=freezes,
            telemetry=telemetry,
            runtime=runtime,
            is_gone=is_gone,
        )
        self._quotas = quotas or Quotas()
        self._topics = topics
        self._limits_work = self._quotas.limit_work or any(topic.running_max for topic in topics.declared)
        self._turns = Turns()
        self._not_before = 0.0
        self._bus_returned = False
        self._left_waiting = True
        """Somebody waits who may be helped by whatever ends, or nobody has looked yet."""
        self._room_is_wanted = True
        """Somebody waits for room, or nobody has looked yet: no job is given past them."""
        self._unserved_by: set[str] | None = None
        """There are jobs for none of these workers, whatever room they have. Who comes beside them is theirs first."""
        self._heard = 0
        """Jobs that came to wait since the last look: the room they may need is given to nobody."""
        self._of_sessions: set[str] = set()
        """Jobs at work behind whom others of their sessions may wait, unlisted."""
        bus.on_return(self._hear_return)

    async def tick(self) -> None:
        began = self._runtime.now()
        await self._dispatch_what_fits()
        took_s = self._runtime.now() - began
        self._every_s = min(max(POLL_S, POLLS_APART * took_s), POLL_S_MAX)

    async def _dispatch_what_fits(self) -> None:
        """Batch after batch, until nothing more fits or nothing is left.

        Jobs that no worker can take now, that are frozen, or whose tenant, topic or rule has all it may have,
        are looked past, so that they do not starve those behind: with all others of the topic that want what nobody has,
        or, where they want no labels, with the whole topic.
        """
        if self._bus_returned:
            self._bus_returned = False
            if await self._dispatcher.hasten():
                self._hear_return()  # the others after what can be dispatched now
        passed_over, is_contended = PassedOver(), False
        shares = await self._count() if self._limits_work and self._has_room() else None
        while self._runtime.now() >= self._not_before:
            if not self._has_room() or (await self._freezes.current()).everything:
                self._left_waiting = self._room_is_wanted = True
                return
            heard = self._heard
            passed_over.look(self._registry.candidates(), alive_since=self._alive_since())
            jobs = await self._list(passed_over, shares)
            waiting = [*jobs, *await self._list_others(jobs, passed_over, shares)]
            if shares is None and any(limit_of(job) for job in waiting):
                shares = await self._count()
            known = _size(passed_over, shares)
            placing = Placing(self._registry.candidates(), alive_since=self._alive_since())
            placed, left, held = self._place(self._turns.arrange(waiting), placing, shares)
            is_contended |= self._pass_over(left, passed_over, placing)
            is_all = len(jobs) < BATCH and len(placed) + len(left) + held == len(waiting)
            # Until all were seen, what the last look has found holds, and what was heard since: to look past very many may take
            # long, and whoever is given nothing meanwhile has to be looked for in turn.
            self._room_is_wanted |= is_contended
            self._left_waiting |= is_contended or bool(held or _full(shares))
            outcomes = await self._dispatch(placed) if placed else []
            is_contended |= any(outcome is not Dispatched.SENT for outcome in outcomes)
            if len(jobs) < BATCH or (Dispatched.SENT not in outcomes and _size(passed_over, shares) == known):
                self._heard -= heard
                self._unserved_by = placing.ready() if passed_over else None
                self._room_is_wanted = is_contended or not is_all
                self._left_waiting = self._room_is_wanted or bool(held or _full(shares))
                return

    async def _count(self) -> Shares:
        return Shares(self._quotas, self._topics, await self._store.count_active())

    def _has_room(self) -> bool:
        return any(view.room > 0 and view.wants for view in self._registry.candidates())

    async def _list(
        self, passed_over: PassedOver, shares: Shares | None, *, limit: int = BATCH, without: Collection[Tenant] = ()
    ) -> list[Job]:
        frozen = self._freezes.known
        return await self._store.list_dispatchable(
            limit=limit,
            except_topics=frozen.topics.union(passed_over.topics, () if shares is None else shares.full_topics),
            except_tenants=frozen.tenants.union(without, () if shares is None else shares.full_tenants),
            except_keys=() if shares is None else shares.full_keys,
            met_by=passed_over.met_by,
        )

    async def _list_others(self, jobs: Sequence[Job], passed_over: PassedOver, shares: Shares | None) -> list[Job]:
        """Jobs of tenants that a full list has no place for, because those in it have higher priorities; and
        of those that have no place in this one, and so on. Mostly it is one look that finds nobody."""
        others: list[Job] = []
        seen = {job.tenant for job in jobs}
        is_full = len(jobs) == BATCH
        for _ in range(OTHERS_LISTS):
            if not is_full:
                break
            page = await self._list(passed_over, shares, limit=OTHERS, without=seen)
            is_full = len(page) == OTHERS
            seen |= {job.tenant for job in page}
            others += page
        return others

    def _pass_over(self, left: Iterable[Job], passed_over: PassedOver, placing: Placing) -> bool:
        """Whether one of them waits for what may come to be here: room, or the end of a freeze."""
        waits_here = False
        for job in left:
            is_frozen, is_served = self._freezes.of(job) is not None, placing.serves(job)
            if is_frozen:
                passed_over.topics.add(job.topic)  # as a whole, for no tenant that is frozen is listed
            else:
                passed_over.add(job, is_served=is_served, pool=self._topics.get(job.topic).pool)
            waits_here |= is_frozen or is_served
        return waits_here

    def _alive_since(self) -> float:
        return self._store.now() - SILENT_S

    def _place(
        self, jobs: Iterable[Job], placing: Placing, shares: Shares | None
    ) -> tuple[list[Placed], list[Job], int]:
        """Each job with its worker, until there is no room; the jobs for which there is none now; and how many are held back
        by a limit."""
        placed: list[Placed] = []
        left: list[Job] = []
        held = 0
        for job in jobs:
            if not placing.room:
                break
            if shares is not None and not shares.has_room_for(job):
                held += 1
                continue
            worker = None if self._freezes.of(job) is not None else placing.place(job)
            if worker is None:
                left.append(job)
            else:
                placed.append(Placed(job, worker))
                if shares is not None:
                    shares.take(job)
        return placed, left, held

    async def _dispatch(self, placed: Sequence[Placed]) -> list[Dispatched]:
        # Counted before it is sent: the next look at the registry must not give the same room away.
        for job, worker in placed:
            self._registry.took(worker, job.id)
        if len(self._of_sessions) > OF_SESSIONS_MAX:
            self._of_sessions.clear()  # their ends were not heard; who waits behind them is found by polling
        self._of_sessions.update(job.id for job, _ in placed if job.session)
        try:
            outcomes = await self._dispatcher.dispatch(placed)
        except BaseException:
            for job, _ in placed:
                self._registry.freed(job.id)
            raise
        for (job, _), outcome in zip(placed, outcomes, strict=True):
            if outcome is not Dispatched.SENT:
                self._registry.freed(job.id)
        self._turns.served(
            job for (job, _), outcome in zip(placed, outcomes, strict=True) if outcome is Dispatched.SENT
        )
        if Dispatched.UNANSWERED in outcomes:
            self._not_before = self._runtime.now() + STORE_RETRY_S
        return outcomes

    def give(self, jobs: Sequence[Job]) -> dict[JobId, Sending]:
        """A `Giver`'s word: past the queue if there is room for all who stand in it, and only what no limit has to be
        counted for. The most urgent first."""
        if self._room_is_wanted:
            return {}
        now = self._store.now()
        free = [job for job in islice(jobs, BATCH) if self._may_give(job, now)]
        if not free:
            return {}
        alive_since, kept = self._alive_since(), self._heard
        candidates = self._registry.candidates_for(free, alive_since=alive_since, kept=kept)
        placing = Placing(candidates, alive_since=alive_since, kept=kept)
        if self._unserved_by is not None and not placing.ready() <= self._unserved_by:
            return {}
        placed, _, _ = self._place(sorted(free, key=lambda job: -job.priority), placing, None)
        given: dict[JobId, Sending] = {}
        for job, worker in placed:
            sending = self._dispatcher.give(job, worker)
            if sending is not None:
                given[job.id] = sending
                self._registry.took(worker, job.id)
        return given

    def _may_give(self, job: Job, now: float) -> bool:
        limited = is_limited(job, self._quotas, self._topics) if self._limits_work else limit_of(job)
        return not (limited or job.session or job.not_before > now) and self._freezes.lets(job)

    def gave(self, sending: Sending, *, written: bool | None) -> None:
        self._dispatcher.gave(sending, written=written)
        if written:
            self._turns.served([sending.change.before])
        else:
            self._registry.freed(sending.change.before.id)

    def _hear_return(self) -> None:
        self._bus_returned = True
        self.wake()

    def heard(self, events: Sequence[JobEvent]) -> None:
        """What was committed: room that became free, or a job that became dispatchable."""
        # By job, the last word of this commit: one that was stored and given away in it waits for nobody.
        last = {event.job_id: event.state for event in events}
        ended = {job_id for job_id, state in last.items() if state in TERMINAL}
        waiting = sum(state is State.SCHEDULED for state in last.values())
        if waiting:
            self._heard += waiting
            self.wake()
        elif ended and (self._left_waiting or self._heard or not self._of_sessions.isdisjoint(ended)):
            self.wake()
        self._of_sessions -= ended


def _size(passed_over: PassedOver, shares: Shares | None) -> int:
    """How much is looked past: if nothing was sent and it has not grown, the next list would be the same."""
    return len(passed_over) + _full(shares)


def _full(shares: Shares | None) -> int:
    return 0 if shares is None else len(shares.full_tenants) + len(shares.full_topics) + len(shares.full_keys)
