"""What tests of planes on one server share: settings, and what the history says became of the jobs."""

from __future__ import annotations

from collections import Counter

from holdfast.config import Settings
from holdfast.core.topic import Topic, Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import open_store

TOPICS = Topics((Topic(name="*", lease_s=2.0, dispatch_timeout_s=2.0, pending_timeout_s=1.0),))
CUTS_MIN = 6
"""How many connections must have died, or nothing was shown; however slow the machine is."""
JOBS = 60


def on(url: str) -> Settings:
    return Settings(store=url, port=0, topics=TOPICS)


async def ends(url: str) -> Counter[str]:
    """How often each job has ended, by the history; in which every event has a number of its own."""
    store = open_store(url, topics=TOPICS, runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        events = await store.list_events(after=0, limit=10_000)
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))
        assert await store.count_jobs() == {}
        return Counter(event.job_id for event in events if event.kind == "job.succeeded")
    finally:
        await store.close()


async def has_gaps(url: str) -> bool:
    """Whether a number is missing in the history."""
    store = open_store(url, topics=TOPICS, runtime=SYSTEM, timeout_s=10.0)
    await store.open()
    try:
        events = await store.list_events(after=0, limit=10_000)
        return [event.number for event in events] != list(range(1, len(events) + 1))
    finally:
        await store.close()
