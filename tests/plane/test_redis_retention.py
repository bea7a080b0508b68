"""Retention in Redis: how much is read to find out what may go."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from holdfast.core.job import JobId
from holdfast.core.retention import NEVER, Limits
from holdfast.locks.stores.redis.wire import Reply
from holdfast.ports import Note
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.link import PlaneLink
from holdfast.stores.retention import LOOSE, RECORDS
from plane.jobs import ACME, OTHER, stored
from plane.redis_namespaces import opened, url  # noqa: F401


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[object]:
    """How often a plane has sent each command."""
    sent: Counter[object] = Counter()
    ask = PlaneLink.ask

    async def counted(link: PlaneLink, *commands: Sequence[Word]) -> list[Reply]:
        sent.update(command[0] for command in commands)
        return await ask(link, *commands)

    monkeypatch.setattr(PlaneLink, "ask", counted)
    return sent


async def test_when_a_run_ended_is_known_from_its_last_events(url: str, asked: Counter[object]) -> None:
    async with opened(url) as store:
        run = await stored(store, state="succeeded")
        await store.add_notes([Note(ACME, JobId(""), "step.succeeded", {}, run=run.id)] * 300)
        # Another tenant's run of the same id has the last word, and does not count.
        await stored(store, tenant=OTHER, id=run.id)
        await store.add_notes([Note(OTHER, JobId(""), "step.succeeded", {}, run=run.id)] * 15)
        asked.clear()

        assert await store.prune(Limits(run.created_at + 1e-6, NEVER), after=RECORDS) == (0, LOOSE)

        assert asked["XRANGE"] == 20
