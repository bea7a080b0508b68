"""How those look at a plane's Redis who only look on: in place, at once, with nothing in between; and what they look for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from flow.plane_invariants import histories

from holdfast.core.job import Job
from holdfast.core.states import TERMINAL
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.locks.errors import LockError
from holdfast.locks.stores.redis.refusals import refusal
from holdfast.locks.stores.redis.wire import Parser, Reply, ReplyError
from holdfast.ports import JobEvent
from holdfast.stores import NAMESPACE
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.batch_store import BatchStore
from holdfast.stores.batch_writer import Batch, Call
from holdfast.stores.ledger import look_at
from holdfast.stores.place import Place
from holdfast.stores.redis.commands import Commands, Word
from holdfast.stores.redis.index import add_job
from holdfast.stores.redis.keys import Keys, joined
from holdfast.stores.redis.line import Script, encoded
from holdfast.stores.redis.link import Asking, PlaneLink
from holdfast.stores.redis.reads import RedisReads
from holdfast.stores.redis.writer import Moved, RedisBatches
from simulation.redis_server import RedisServer

if TYPE_CHECKING:
    from simulation.redis_plane_story import RedisPlaneStory

KEYS = Keys(NAMESPACE)
LISTS = ("ready", "live", "tenant:", "state:", "hand:", "session:", "working:", "queue:", "run:", "replays:")
"""Where jobs stand by what they are."""
HASHES = ("jobs", "payloads", "results", "topics", "active")


class InPlace:
    """`PlaneLink` and `Asking` of the onlooker: the server is asked as a function is called."""

    subject = "store"

    def __init__(self, story: RedisPlaneStory) -> None:
        self._story = story

    async def ask(self, *commands: Sequence[Word]) -> list[Reply]:
        return self._replies(b"".join(map(encoded, commands)))

    async def run(self, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Reply:
        [reply] = self._replies(encoded(("EVAL", what.text, len(keys), *keys, *arguments)))
        return reply

    def _replies(self, request: bytes) -> list[Reply]:
        replies = Parser().feed(self._story.redis.feed(request, self._hear))
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise refusal(self.subject, str(reply))
        return replies

    def _hear(self, _: bytes) -> None:
        """Onlookers have subscribed to nothing."""


class Onlooker(BatchStore):
    """The product's own reads, and its own writes, for what a person changes by hand."""

    def __init__(self, story: RedisPlaneStory, topics: Topics) -> None:
        self._story = story
        link = InPlace(story)
        self.reads = RedisReads(cast(Asking, link), KEYS)
        self._line = link
        self._batches = RedisBatches(
            cast(PlaneLink, link),
            KEYS,
            runtime=story.server.runtime,
            timeout_s=0.0,
            now=self.now,
            words=lambda _: [],
        )
        super().__init__(cast(Place, self), topics=topics)

    subject = InPlace.subject

    @property
    def writer(self) -> Onlooker:
        return self

    def now(self) -> float:
        return self._story.server.runtime.wall_us() / 1e6

    async def call(self, ask: Callable[[Needs], Any], verb: Callable[[BatchLedger], Any], **__: Any) -> Any:
        """As `BatchWriter.call`, but at once; who is not let through looks again some other time."""
        [turn] = await self._line.ask(("GET", KEYS.turn))
        if turn is not None:
            raise StoreUnavailable(self.subject, "it is another's turn", applied=False)
        try:
            alone = Batch([Call(ask, verb, cast(Any, None), 0.0, 1)], join=list, meanwhile=lambda: None)
            _, [answer] = await self._batches.write(alone)
        except (LockError, Moved) as failure:
            raise self._batches.translated(failure, applied=False) from None
        if isinstance(answer, HoldfastError):
            raise answer
        return answer


def check_rows(events: Iterable[JobEvent], jobs: Iterable[Job | None]) -> None:
    """U1: a change and the line that tells of it are written together."""
    by_id = {job.id: job for job in jobs if job is not None}
    for job_id, history in histories(events).items():
        assert job_id in by_id, f"U1: {job_id} has a history, and is not there"
        told = [event.state for event in history if event.state is not None][-1]
        assert by_id[job_id].state is told, f"U1: {job_id} is {by_id[job_id].state}, and its history says {told}"
    assert not by_id.keys() - histories(events).keys(), "U1: a job without a history"


def check_lists(server: RedisServer, jobs: Iterable[Job | None], topics: Topics) -> None:
    """U1: jobs stand in the lists that they belong in, in no other, and are counted."""
    anew = RedisServer(lambda: 0, lambda *_: None)
    commands = Commands()
    there = [job for job in jobs if job is not None]
    for number, job in enumerate(there):
        add_job(commands, KEYS, job, look_at(job, topics.get), number)
    live = Counter(joined(job.tenant, job.state.value) for job in there if job.state not in TERMINAL)
    for place, count in live.items():
        commands.count(KEYS.counts, place, count)
    for command in commands.commands():
        anew.feed(encoded(command), lambda _: None)
    for name in sorted(_names(server) | _names(anew)):
        found, wanted = _contents(server, name), _contents(anew, name)
        assert found == wanted, f"U1: {name.decode()} has {found}, and should have {wanted}"


def _names(server: RedisServer) -> set[bytes]:
    families = tuple(f"{KEYS.prefix}{name}".encode() for name in (*LISTS, *HASHES, "counts"))
    exact = {name for name in families if not name.endswith(b":")}
    return {key for key in server.names() if key in exact or key.startswith(tuple(set(families) - exact))}


def _contents(server: RedisServer, name: bytes) -> Any:
    value = server.find(name)
    if value is None or isinstance(value, dict):
        return value or {}
    return value.scores
