"""The courier: turns events into posts to the webhooks that want them, and brings posts to their receivers.

Nothing is lost or written twice by a crash: the posts of a page of events and the webhook's new place
in the stream are one transaction, and so is the claim of a post before it is sent. Any number of
replicas may run; who loses a claim has sent nothing. A try that a crash cuts off is made again, under
the same id.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.webhook import (
    Post,
    PostState,
    Try,
    Verdict,
    Webhook,
    begin_try,
    end_try,
    give_up,
    judge,
    post_from,
    post_record,
    post_to,
    signed_headers,
    webhook_from,
    webhook_record,
)
from holdfast.errors import StoreUnavailable
from holdfast.flow.newest import newest_number
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener
from holdfast.ports import JobEvent, RecordChange, Store, Transaction
from holdfast.telemetry import Telemetry

POLL_S = 1.0
WEBHOOKS = 500
"""Read at a tick. Where there are more, those whose turn is longest ago come first."""
EVENTS = 500
PAGES = 4
"""Of events, that one webhook is given at a tick, where it is behind: whoever is further behind keeps nobody waiting."""
FAR = 10_000
"""Events that a webhook has passed: then its place is written, or whoever starts anew would look at all of them again."""
POSTS = 200
HANDS = 32
"""Posts that one process sends at once."""
HANDS_PER_WEBHOOK = 4
"""So that one slow receiver does not hold up the others."""
PUT_OFF_S = 5.0
PUT_OFF_S_MAX = 3600.0
SLOW_S = 1.0
"""A receiver that takes longer has those that wait for it put off until their turn may come."""


class Reply(Protocol):
    @property
    def status(self) -> int | None: ...
    @property
    def error(self) -> str: ...
    @property
    def wait_s(self) -> float: ...


Send = Callable[[str, Mapping[str, str], bytes], Awaitable[Reply]]
Whose = tuple[Tenant, str]


class Courier(Listener):
    def __init__(self, *, store: Store, send: Send, telemetry: Telemetry, runtime: Runtime) -> None:
        super().__init__("courier", store=store, every_s=POLL_S, runtime=runtime)
        self._send = send
        self._telemetry = telemetry
        self._runtime = runtime
        self._passed: dict[tuple[Tenant, str, int], int] = {}
        """By a webhook's version: up to where its events are known to be of no interest to it. A hint
        that spares writing its place for each event that it does not want."""
        self._listening: dict[Tenant, list[Webhook]] = {}
        self._front: int | None = None
        """Up to where the stream was read for all of them at once. Others' events are looked at once, and not again for each
        of those who wait for one of their own."""
        self._sending: Counter[Whose] = Counter()
        self._slow: dict[Whose, float] = {}
        """How long the last try took, where that was long."""
        self._crowd: Counter[Whose] = Counter()
        """Posts that were put off since there was last no crowd."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        await super().stop()
        for task in self._tasks:
            task.cancel()
        # What they were sending is sent again when its claim has run out.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heard(self, events: Sequence[JobEvent]) -> None:
        # Only for what somebody wants: events are what a plane makes all day. The others are passed by and by.
        if any(webhook.wants(event.kind) for event in events for webhook in self._listening.get(event.tenant, ())):
            self.wake()

    async def tick(self) -> None:
        await self._write_posts()
        await self._take_posts()

    # -- events become posts -----------------------------------------------------------------------

    async def _write_posts(self) -> None:
        webhooks = [webhook_from(record) for record in await self._store.list_due(Kind.WEBHOOK, limit=WEBHOOKS)]
        self._passed = {_version(each): max(each.cursor, self._passed.get(_version(each), 0)) for each in webhooks}
        self._listening = {}
        for webhook in webhooks:
            self._listening.setdefault(webhook.tenant, []).append(webhook)
        if not webhooks:
            self._front = None
            return
        if self._front is None:
            newest = await newest_number(self._store, at_least=max(self._passed.values()))
            self._front = max(min(self._passed.values()), newest - PAGES * EVENTS)
        front = self._front
        news = await self._store.list_events(after=front, limit=EVENTS)
        self._front = news[-1].number if news else front
        crowded = len(webhooks) == WEBHOOKS
        for webhook in webhooks:
            await self._follow(webhook, front, news, write_turn=crowded)
        if len(news) == EVENTS:
            self.wake()

    async def _follow(self, webhook: Webhook, front: int, news: Sequence[JobEvent], *, write_turn: bool) -> None:
        """What it has not seen up to `front`, page by page, or as far as one tick goes; then `news`, which is what follows."""
        for _ in range(PAGES):
            place = self._passed[_version(webhook)]
            behind = place < front
            if behind:
                page = await self._store.list_events(after=place, limit=EVENTS, tenant=webhook.tenant)
                last = page[-1].number if page else place
                place = max(last, front) if len(page) < EVENTS else last
            else:
                page = [event for event in news if event.tenant == webhook.tenant and event.number > place]
                place = max(place, news[-1].number) if news else place
            wanted = [event for event in page if webhook.wants(event.kind)]
            if wanted or write_turn or (behind and place < front) or place - webhook.cursor >= FAR:
                moved = replace(webhook, cursor=place, looked_at=self._store.now())
                posts = [_post(webhook, event) for event in wanted]
                if not await self._write([_replacing(webhook_record(moved)), *(_new(post) for post in posts)]):
                    # Another replica was quicker, or a person changed it: the next tick reads it anew.
                    return
                self._passed.pop(_version(webhook))
                webhook = replace(moved, version=moved.version + 1)
            self._passed[_version(webhook)] = place
            if not behind:
                return
        self.wake()

    # -- posts become requests ---------------------------------------------------------------------

    async def _take_posts(self) -> None:
        page = await self._store.list_due(Kind.POST, limit=POSTS)
        now = self._store.now()
        changes: list[RecordChange] = []
        claimed: list[tuple[int, Post]] = []
        left: list[Post] = []
        for record in page:
            whose = (record.tenant, record.parent)
            if record.state != PostState.PENDING:
                # It has been shown in the log for long enough.
                changes.append(RecordChange(after=record, replaces=record.version, remove=True))
            elif len(self._tasks) + len(claimed) < HANDS and self._sending[whose] < HANDS_PER_WEBHOOK:
                self._sending[whose] += 1
                post = begin_try(post_from(record), now=now)
                claimed.append((len(changes), post))
                changes.append(_replacing(post_record(post)))
            else:
                left.append(post_from(record))
        if len(page) == POSTS:
            # A crowd before a slow receiver steps aside, or nobody would see who stands behind it; all of it, and at once.
            changes += [_replacing(post_record(replace(post, due=now + self._put_off_s(post)))) for post in left]
            self.wake()
        else:
            self._crowd.clear()
        if changes:
            await self._begin(changes, claimed)

    async def _begin(self, changes: Sequence[RecordChange], claimed: Sequence[tuple[int, Post]]) -> None:
        written = [False] * len(changes)
        try:
            written = await self._store.transact([Transaction(records=[change]) for change in changes])
        finally:
            for n, post in claimed:
                if written[n]:
                    self._start(replace(post, version=post.version + 1))
                else:
                    self._sending[post.tenant, post.webhook] -= 1

    def _start(self, post: Post) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(post), name="holdfast-post")
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            self._sending[post.tenant, post.webhook] -= 1
            self._sending += Counter()  # forgets those at zero
            self.wake()

        task.add_done_callback(end)

    async def _deliver(self, post: Post) -> None:
        try:
            await self._try(post)
        except StoreUnavailable:
            # Whether or not it was sent: the claim runs out, and it is sent again, with an id that is known.
            self._telemetry.post_tried("unwritten")

    async def _try(self, post: Post) -> None:
        """From the claim to what became of it."""
        [record] = await self._store.find_records(Kind.WEBHOOK, post.tenant, [post.webhook])
        found = None if record is None else webhook_from(record)
        webhook = found if found is not None and found.is_meant(post) else None
        began = self._store.now()
        if webhook is None or not webhook.enabled:
            why = "webhook-removed" if webhook is None else "webhook-disabled"
            await self._write([_replacing(post_record(give_up(post, why, now=began)))])
            return
        headers = signed_headers(post, webhook.secrets_at(began), now=began)
        reply = await self._send(webhook.url, headers, post.content.encode())
        tried = Try(at=began, status=reply.status, error=reply.error, took_s=self._store.now() - began)
        self._note_pace((post.tenant, post.webhook), tried.took_s)
        verdict = judge(post, tried)
        after = end_try(post, tried, chance=self._runtime.jitter(1.0), wait_s=reply.wait_s)
        if verdict is Verdict.DISABLE:
            gone = replace(webhook, enabled=False, why_disabled="the receiver answered 410 Gone")
            await self._write([_replacing(webhook_record(gone))])
        await self._write([_replacing(post_record(after))])
        self._telemetry.post_tried(verdict)

    async def _write(self, changes: Sequence[RecordChange]) -> bool:
        [written] = await self._store.transact([Transaction(records=changes)])
        return written

    def _note_pace(self, whose: Whose, took_s: float) -> None:
        if took_s > SLOW_S:
            self._slow[whose] = took_s
        else:
            self._slow.pop(whose, None)

    def _put_off_s(self, post: Post) -> float:
        """Until the others before a slow receiver have had their turns, more or less: tens of thousands of posts that come
        round every few seconds would be seen before those of everybody else."""
        whose = (post.tenant, post.webhook)
        self._crowd[whose] += 1
        turn_s = self._crowd[whose] / HANDS_PER_WEBHOOK * self._slow.get(whose, 0.0)
        return max(self._runtime.jitter(PUT_OFF_S), min(turn_s, PUT_OFF_S_MAX))


def _version(webhook: Webhook) -> tuple[Tenant, str, int]:
    return webhook.tenant, webhook.name, webhook.version


def _post(webhook: Webhook, event: JobEvent) -> Record:
    told = {
        "number": event.number,
        "job_id": event.job_id,
        "run": event.run,
        "state": event.state,
        "attempt": event.attempt,
        "fence": event.fence,
        "at": event.at,
        "detail": event.detail,
    }
    # By time first, as ids are (`flow.submit.new_id`): the log is in the order of keys, and others post as well.
    key = f"{int(event.at * 1_000_000):014x}-{event.number:012d}"
    return post_to(webhook, event.kind, told, key=key, now=event.at)


def _new(record: Record) -> RecordChange:
    return RecordChange(after=record, replaces=0)


def _replacing(record: Record) -> RecordChange:
    return RecordChange(after=record, replaces=record.version - 1)
