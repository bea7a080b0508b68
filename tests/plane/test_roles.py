"""The roles of a plane: together they are all that `holdfast up` is, and nothing is in two of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager

from holdfast.buses.detached import DetachedBus
from holdfast.buses.outbox import OutboxBus
from holdfast.config import Settings
from holdfast.flow.renewals import RenewalLog
from holdfast.locks import Locks
from holdfast.locks.runtime import SYSTEM
from holdfast.loops import Loop
from holdfast.posting import posting
from holdfast.roles import ALL, Role
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry
from holdfast.wiring import CLASSES, Wiring

SETTINGS = Settings(store="postgresql://nobody@db.example/jobs", bus="nats://bus.example", dispatch="outbox")
"""With everything that a plane may have. Nothing is opened: only who belongs where is asked."""


@asynccontextmanager
async def wired(roles: Collection[Role] = ALL) -> AsyncIterator[Wiring]:
    store = open_store("sqlite:///:memory:", topics=SETTINGS.topics, runtime=SYSTEM)
    async with posting(allow_private=False) as outside:
        yield Wiring(
            SETTINGS,
            roles=roles,
            store=store,
            bus=OutboxBus(store, DetachedBus(SYSTEM.now, fail=lambda _: None)),
            locks=Locks(SETTINGS.store, classes=CLASSES),
            outside=outside,
            telemetry=Telemetry(),
            renewals=RenewalLog(SYSTEM),
            runtime=SYSTEM,
        )


def kinds_of_loops(kind: type[Loop] = Loop) -> Iterator[type[Loop]]:
    for narrower in kind.__subclasses__():
        if narrower.__module__.startswith("holdfast.") and not inspect.isabstract(narrower):
            yield narrower
        yield from kinds_of_loops(narrower)


async def test_every_loop_of_the_plane_is_in_exactly_one_role_or_everywhere() -> None:
    async with wired() as wiring:
        homes = Counter(type(loop) for loops in (wiring.everywhere, *map(wiring.services_of, Role)) for loop in loops)
        together = [type(loop) for loop in wiring.services]

    assert homes == Counter(dict.fromkeys(kinds_of_loops(), 1))
    assert Counter(together) == homes


async def test_role_runs_its_own_loops_and_those_that_everybody_needs() -> None:
    for role in Role:
        async with wired({role}) as wiring:
            assert wiring.services == (*wiring.everywhere, *wiring.services_of(role))
            assert {"policies", "roll-call", "attendance"} <= {loop.name for loop in wiring.everywhere}
