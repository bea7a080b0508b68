"""What is Redis's own in the control plane's store: writes that are overtaken, answers that get lost, servers that forget."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
import servers
from harness import eventually
from locks.redis_setup import dropping_replies, replicated, sentinel_server

from holdfast.core.job import JobId, Tenant, amend, next_fence
from holdfast.core.record import Kind
from holdfast.core.retention import Limits
from holdfast.core.states import Event, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.ports import Accepted, Change, Delivery, JobFilter, Note, RecordChange, Submission
from holdfast.stores import StoreWithBus
from holdfast.stores.redis.link import SETTLE, WRITE
from plane.jobs import ACME, a_job, a_record, dispatched, new, recoverable, running, sending, stepped, stored, submitted
from plane.redis_namespaces import client, named, opened, raw, url  # noqa: F401

pytest_plugins = ["locks.redis_fixtures"]


def submission(**changes: Any) -> Submission:
    return Submission(job=a_job(**changes), key=None, digest="")


# -- who writes when -------------------------------------------------------------------------------


class Plane:
    """One that writes by hand, a step at a time."""

    def __init__(self, name: str, url: str, raw: redis.Redis) -> None:
        self.name = name
        self._url = url
        self._raw = raw
        self._writes = 0

    def _key(self, name: str) -> str:
        return named(self._url, name)

    def head(self) -> bytes:
        head = self._raw.get(self._key("head")) or b""
        assert isinstance(head, bytes)
        return head

    def write(self, head: bytes, value: str = "x") -> tuple[str, str]:
        """The answer, and the word of the write."""
        self._writes += 1
        word = f"{self.name}:{self._writes}"
        keys = [self._key(name) for name in ("head", "turn", f"done:{self.name}", "fronts", "ready", "events")]
        command = ["SET", self._key("value"), value]
        beside = ["0", "0", "0", "0", "", ""]
        arguments: list[Any] = [head, word, self.name, "60000", "60000", "c", *beside, str(len(command)), *command]
        answer: Any = self._raw.eval(WRITE.text, len(keys), *keys, *arguments)
        return answer.decode(), word

    def settle(self, word: str) -> bool:
        keys = [self._key("head"), self._key(f"done:{self.name}")]
        return bool(self._raw.eval(SETTLE.text, len(keys), *keys, word, f"{word}!"))


def test_who_was_overtaken_writes_next_whatever_others_want(url: str, raw: redis.Redis) -> None:
    slow, quick = Plane("slow", url, raw), Plane("quick", url, raw)
    decided_on = slow.head()
    assert quick.write(quick.head())[0] == "written"
    assert slow.write(decided_on)[0] == "moved"

    assert quick.write(quick.head())[0] == "wait"
    assert slow.write(slow.head())[0] == "written"
    assert quick.write(quick.head())[0] == "written"


def test_write_that_was_found_not_to_have_arrived_never_arrives(url: str, raw: redis.Redis) -> None:
    plane = Plane("p", url, raw)
    decided_on = plane.head()
    assert not plane.settle("p:1")

    assert plane.write(decided_on) == ("moved", "p:1")
    assert raw.get(named(url, "value")) is None
    assert plane.write(plane.head())[0] == "written"
    assert plane.settle("p:2")


async def test_many_small_writes_of_one_plane_do_not_keep_another_from_writing_much(url: str) -> None:
    async with opened(url) as quick, opened(url) as slow:
        done = asyncio.Event()

        async def write() -> int:
            writes = 0
            while not done.is_set():
                await quick.add_notes([Note(ACME, JobId(""), "policy.published", {})])
                writes += 1
            return writes

        writing = asyncio.create_task(write())
        for _ in range(3):
            answers = await slow.submit([submission() for _ in range(400)])
            assert all(isinstance(answer, Accepted) for answer in answers)
        done.set()

        notes = await writing
        events = await slow.list_events(after=0, limit=9999)
        assert len(events) == 1200 + notes
        assert [event.number for event in events] == list(range(1, len(events) + 1))


# -- what is known when the answer is lost ---------------------------------------------------------


async def test_write_whose_answer_was_lost_is_asked_after_and_happens_once(url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    # The answer to the script that writes the change: by then it has run.
    async with dropping_replies(port, to=b"job.cancel_requested") as (proxy, _):
        async with opened(url.replace(f":{port}", f":{proxy}")) as store, opened(url) as other:
            job = await submitted(store)
            changed = amend(job, cancel_requested=True)
            answer = await store.apply([Change(before=job, after=changed, kind="job.cancel_requested")])

            assert answer == [True]
            assert await other.get_job(ACME, job.id) == changed
            assert len(await other.list_events(after=0, limit=10, job_id=job.id)) == 2


async def test_server_that_is_gone_leaves_a_write_unknown_or_not_applied() -> None:
    server = servers.redis_server().start()
    try:
        async with opened(server.url, timeout_s=1.0) as store:
            await submitted(store)
            server.pause()
            with pytest.raises(StoreUnavailable) as caught:
                await store.submit([submission()])
            assert caught.value.applied in {None, False}
            server.resume()
            server.kill()
            with pytest.raises(StoreUnavailable) as caught:
                await store.submit([submission()])
            assert caught.value.applied is False
    finally:
        server.remove()


# -- a server that forgets -------------------------------------------------------------------------


async def test_promoted_replica_that_lagged_gives_out_no_number_and_no_fence_twice() -> None:
    primary = servers.redis_server("--repl-diskless-sync-delay", "0").start()
    replica = servers.redis_server("--replicaof", "127.0.0.1", str(primary.port)).start()
    try:
        with redis.Redis(port=primary.port) as first, redis.Redis(port=replica.port) as second:
            async with opened(primary.url) as store:
                job = await submitted(store)
                replicated(first)
                second.execute_command("REPLICAOF", "NO", "ONE")  # from here on it hears nothing of its primary
                fence = next_fence(job, now=store.now())
                sent = await stepped(store, job, Event.DISPATCH, worker="w1", fence=fence)
                await stepped(store, sent, Event.START, attempts=1, lease_until=store.now() + 30)
                seen = (await store.list_events(after=0, limit=10))[-1].number
            primary.kill()
            async with opened(replica.url) as store:
                again = await store.get_job(ACME, job.id)
                assert again == job, "the dispatch is forgotten"
                other = await stepped(
                    store, again, Event.DISPATCH, worker="w2", fence=next_fence(again, now=store.now())
                )

                assert other.fence > fence
                assert [event.kind for event in await store.list_events(after=seen, limit=10)] == ["job.dispatch"]
    finally:
        primary.remove()
        replica.remove()


async def test_what_happens_is_still_told_when_the_server_has_forgotten_everything(url: str, raw: redis.Redis) -> None:
    """As one that keeps nothing and was started anew: if numbers began again, whoever waits would hear of none but by polling,
    until they are as high as before."""
    async with opened(url) as store:
        told: list[int] = []
        store.subscribe(lambda events: told.extend(event.number for event in events))
        for _ in range(3):
            await submitted(store)
        raw.delete(*raw.keys(named(url, "*")))

        job = await submitted(store)
        await asyncio.sleep(0)

        assert told == [1, 2, 3, 4]
        assert [event.number for event in await store.list_events(after=3, limit=9)] == [4]
        assert await store.get_job(ACME, job.id) == job


# -- where it is -----------------------------------------------------------------------------------


async def walk(url: str) -> bool:
    """Whether a job that was begun and ended is what the store then has."""
    async with opened(url) as store:
        job = await running(store)
        ended = await stepped(store, job, Event.SUCCEED, result=b"1")
        return await store.list_jobs(ACME, JobFilter(), before=None, limit=10) == [ended]


async def test_plane_is_in_one_slot_of_a_cluster_wherever_that_is(cluster: list[servers.Server]) -> None:
    seeds = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    for namespace in ("a", "b"):  # one in each half of the slots
        assert await walk(f"redis+cluster://{seeds}?namespace={namespace}")

    found: list[Any] = [redis.Redis(port=node.port).keys("*") for node in cluster]
    kept = [{key.split(b":")[0] for key in keys} for keys in found]
    assert sorted(kept, key=sorted) == [{b"{a}"}, {b"{b}"}]


async def test_server_of_a_cluster_that_does_not_answer_leaves_time_for_the_others(
    cluster: list[servers.Server],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as a machine that is gone: nobody even hangs up
        seeds = ",".join(f"127.0.0.1:{port}" for port in (silent.getsockname()[1], cluster[0].port))
        async with opened(f"redis+cluster://{seeds}?namespace=c", timeout_s=1.0) as store:
            job = await submitted(store)

            assert await store.get_job(ACME, job.id) == job


async def test_sentinels_name_the_primary() -> None:
    primary = servers.redis_server().start()
    sentinel = sentinel_server(primary.port).start()
    try:
        assert await walk(f"redis+sentinel://127.0.0.1:{sentinel.port}/payments")
    finally:
        sentinel.remove()
        primary.remove()


async def test_planes_of_different_namespaces_know_nothing_of_each_other(url: str) -> None:
    async with opened(url) as one, opened(f"{url}-too") as two:
        job = await submitted(one)
        assert await two.find_jobs([job.id]) == [None]
        assert (await two.submit([Submission(job=job, key=None, digest="")]))[0] == Accepted(job, repeated=False)
        await two.prune(Limits(two.now(), two.now()))


async def test_planes_of_different_databases_hear_nothing_of_each_other(url: str) -> None:
    """Channels are the whole server's."""
    elsewhere = urlunsplit(urlsplit(url)._replace(path="/1"))
    async with opened(url) as one, opened(elsewhere) as two, opened(elsewhere) as third:
        heard: list[str] = []
        numbers: list[int] = []
        two.on_arrival(heard.append)
        two.subscribe(lambda events: numbers.extend(event.number for event in events))
        for store, worker in ((one, "w1"), (one, "w1"), (third, "w3")):
            change = sending(store, await submitted(store))
            delivery = Delivery(worker, change.after.id, change.after.fence)
            sent = Change(before=change.before, after=change.after, kind="x", send=delivery)
            assert await store.apply([sent]) == [True]

        await eventually(lambda: asyncio.sleep(0, "w3" in heard and len(numbers) == 2))

        assert set(heard) <= {"", "w3"}, "but for what is said when somebody begins to listen"
        assert numbers == [1, 2], "and a number of another's is none of theirs"
    with client(elsewhere) as raw:
        raw.unlink(*raw.scan_iter(match=named(elsewhere, "*")))


# -- what it keeps ---------------------------------------------------------------------------------


async def ended(store: StoreWithBus) -> None:
    """A job with everything that a job may have."""
    job = a_job(session="s", run="r", payload=b"x" * 3000, decision={"concurrency": {"key": "k", "limit": 1}})
    card = a_record(kind=Kind.APPROVAL, parent=job.id, state="consumed", due=5.0)
    records = [RecordChange(after=card, replaces=0)]
    await store.submit([Submission(job=job, key="key", digest="d", records=records)])
    sent = step_of(store, job)
    assert await store.apply([sent]) == [True]
    working = await stepped(store, sent.after, Event.START, attempts=1)
    await store.prepare_effect(job.id, working.fence, "charge", idempotent=False)
    await store.commit_effect(job.id, working.fence, "charge", b"1")
    await stepped(store, working, Event.FAIL, result=b"2", dead_letter="x")


def step_of(store: StoreWithBus, job: Any) -> Change:
    change = sending(store, job)
    return Change(
        before=job, after=change.after, kind="job.dispatched", send=Delivery("w1", job.id, change.after.fence)
    )


async def test_nothing_is_left_of_what_was_pruned(url: str, raw: redis.Redis) -> None:
    async with opened(url) as store:
        await ended(store)
        await stored(store, kind=Kind.RUN, id="r", state="succeeded", due=7.0)
        # The newest letter and the newest event stay: they are of this one.
        await stepped(store, await running(store, tenant=Tenant("other")), Event.FAIL, dead_letter="x")
        limits, place = Limits(store.now() + 1, store.now() + 1), 0
        while True:
            batch = await store.prune(limits, after=place)
            if batch.after is None:
                break
            place = batch.after

        left = {key.decode().partition("}:")[2] for key in raw.scan_iter(match=named(url, "*"))}
        assert not {name for name in left if "acme" in name or "r" in name.split(":")[1:]}
        kept = {"jobs", "payloads", "came", "letters"}
        sizes = {name: raw.hlen(named(url, name)) for name in kept - {"came"}}
        assert sizes == {"jobs": 1, "payloads": 1, "letters": 1}
        assert left <= kept | {
            "head", "numbers", "settings", "events", "pruned", "tenant:other", "state:other\0FAILED", "letters-of:other",
        } | {name for name in left if name.startswith(("done:", "history:", "job-letters:"))}  # fmt: skip
        assert sum(name.startswith("history:") for name in left) == 1


async def test_renewals_are_no_news_to_other_planes(url: str, raw: redis.Redis) -> None:
    async with opened(url) as store:
        job = await running(store)
        with raw.pubsub() as other:  # type: ignore[no-untyped-call]
            other.subscribe(named(url, "news"))
            other.get_message(timeout=20)  # that it listens
            await store.renew_leases([(job.id, job.fence)])
            await store.add_notes([Note(ACME, job.id, "attempt.refused", {})])
            word: Any = other.get_message(timeout=20)
        _, last, _ = json.loads(word["data"])
        assert last == (await store.list_events(after=0, limit=100))[-1].number


async def test_hot_path_never_walks_through_all_keys(url: str) -> None:
    server = servers.redis_server().start()
    try:
        async with opened(server.url) as store:
            await ended(store)
            await store.transact([new(a_record())])
            await store.list_dispatchable(limit=10)
            await recoverable(store)
            await store.list_due(Kind.RUN, limit=10)
        with redis.Redis(port=server.port) as admin:
            used = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
        assert not used & {"keys", "scan", "hscan", "zscan", "sscan"}
        assert {"evalsha", "hmget"} <= used
    finally:
        server.remove()


@pytest.mark.parametrize(("others", "is_among"), [(State.APPROVAL_REQUIRED, False), (State.SCHEDULED, True)])
async def test_what_is_overdue_is_found_by_whichever_way_is_shorter(
    url: str, raw: Any, others: State, is_among: bool
) -> None:
    """Past all that is due, where most that is in hand is due much later; among what is in hand, where most that is due is not."""
    impatient = Topics((Topic(name="*", dispatch_timeout_s=0.001),))
    async with opened(url, topics=impatient) as store:
        long_ago = store.now() - 60
        await store.submit([submission(state=others, since=long_ago, not_before=long_ago) for _ in range(20)])
        job = await dispatched(store)
        await asyncio.sleep(0.01)
        raw.config_resetstat()

        found, _ = await store.list_recoverable(states=(State.APPROVAL_REQUIRED, State.DISPATCHED), limit=100)

        assert found == [job]
        assert ("cmdstat_zmscore" in raw.info("commandstats")) is is_among


async def test_limits_of_topics_are_worked_out_anew_when_they_have_changed(url: str) -> None:
    async with opened(url) as store:
        job = await dispatched(store)
        assert await recoverable(store) == []

    impatient = Topics((Topic(name="*", dispatch_timeout_s=0.001),))
    async with opened(url, topics=impatient) as store:
        await asyncio.sleep(0.01)
        assert await recoverable(store) == [job]
