"""How the plane stands, gathered seldom enough to be asked for by many, every second."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from holdfast.api.summary import Summary, WarningView
from holdfast.core.approval import ApprovalState
from holdfast.core.freeze import frozen_by
from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.states import EffectState, State
from holdfast.core.warnings import LOOP_IDLE_S, Signs, warnings
from holdfast.flow.freeze import list_freezes
from holdfast.flow.topic_counts import TopicCounts
from holdfast.gateway.plane import Plane
from holdfast.gateway.views import freeze_view, lock_view

FRESH_S = 0.5
"""Whoever asks again sooner is given the same: many may watch."""
TOPICS_SHOWN = 10
LOCKS_SHOWN = 5
LOCKS_LOOKED_AT = 1000
LINE_MAX = 200
EFFECTS_MAX = 100
TENANTS_REMEMBERED = 100
TOTALS = ("submitted", "dispatched", "ended")


class Summaries:
    """The last summary of each tenant."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._known: dict[Tenant, tuple[float, Summary]] = {}
        """With the time at which it was there."""
        self._making: dict[Tenant, asyncio.Task[Summary]] = {}
        self._topics = TopicCounts(plane.store, fresh_s=FRESH_S)

    async def get(self, tenant: Tenant) -> Summary:
        made_at, known = self._known.get(tenant, (0.0, None))
        if known is not None and self._plane.store.now() - made_at < FRESH_S:
            return known
        if tenant not in self._making:
            self._making[tenant] = asyncio.create_task(self._make(tenant))
        # Whoever hangs up meanwhile does not take it away from the others.
        return await asyncio.shield(self._making[tenant])

    async def _make(self, tenant: Tenant) -> Summary:
        try:
            await self._topics.count()
            made = await summarize(self._plane, tenant, self._topics.known)
        finally:
            del self._making[tenant]
        if len(self._known) >= TENANTS_REMEMBERED:
            self._known.clear()
        # From here on, not from its beginning: one that takes long would never be fresh, and be made again and again.
        self._known[tenant] = (self._plane.store.now(), made)
        return made


async def summarize(plane: Plane, tenant: Tenant, live: Mapping[tuple[Tenant, str], int]) -> Summary:
    """`live`: jobs by tenant and topic."""
    store, now = plane.store, plane.store.now()
    jobs = await store.count_jobs()
    states = {state.value: count for (owner, state), count in jobs.items() if owner == tenant}
    topics = Counter({topic: n for (owner, topic), n in live.items() if owner == tenant})
    # Without the others: who has few jobs is not to be hidden behind who has many.
    others = {owner for owner, state in jobs if owner != tenant and state is State.SCHEDULED}
    line = await store.list_dispatchable(limit=LINE_MAX, except_tenants=others)
    line = [job for job in line if job.tenant == tenant]  # somebody may have come meanwhile
    longest = min(line, key=lambda job: job.ready_since, default=None)
    held = await plane.locks.list(None, limit=LOCKS_LOOKED_AT)
    contended = sorted((holder for holder in held if holder.waiters), key=lambda holder: -holder.waiters)
    pending = await store.count_records(Kind.APPROVAL, tenant, states=[ApprovalState.PENDING])
    unknown = await store.list_effects(tenant, state=EffectState.UNKNOWN, limit=EFFECTS_MAX)
    freezes = frozen_by(await list_freezes(store=store), now=now).freezes
    workers = plane.registry.views(now=now)
    signs = Signs(
        conditions=Counter(worker.condition for worker in workers),
        waiting_longest_s=None if longest is None else now - longest.ready_since,
        waiting_longest="" if longest is None else longest.id,
        effects_unknown=len(unknown),
        approvals_pending=sum(pending.values()),
        frozen=[freeze.scope for freeze in freezes],
        loops_idle={loop.name: loop.idle_s for loop in plane.loops if loop.idle_s > LOOP_IDLE_S + 2 * loop.every_s},
        contended=contended[0].key if contended else "",
        waiters=contended[0].waiters if contended else 0,
    )
    return Summary(
        at=now,
        states=states,
        topics=dict(topics.most_common(TOPICS_SHOWN)),
        waiting_longest_s=signs.waiting_longest_s,
        totals={name: _total(plane, f"holdfast_jobs_{name}_total") for name in TOTALS},
        workers=workers,
        locks_held=len(held),
        locks_contended=[lock_view(one, plane.locks) for one in contended[:LOCKS_SHOWN]],
        approvals_pending=signs.approvals_pending,
        effects_unknown=signs.effects_unknown,
        freezes=[freeze_view(freeze) for freeze in freezes],
        warnings=[WarningView(code=one.code, summary=one.summary, next=one.then) for one in warnings(signs)],
    )


def _total(plane: Plane, name: str) -> int:
    """Of a counter, over all its labels."""
    families = plane.telemetry.registry.restricted_registry([name]).collect()
    return int(sum(sample.value for family in families for sample in family.samples if sample.name == name))
