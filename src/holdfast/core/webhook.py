"""Webhooks: whom to tell about what, the posts that do it, and how a post is signed (Standard Webhooks).

A webhook is a record of kind WEBHOOK, a post one of kind POST. A post is written in the transaction
of what it tells, and from then on it is somebody's duty: it ends delivered or failed, and stays for
a while as a line of the log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.family import fits
from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.retry import Backoff

PREFIX = "whsec_"
ATTEMPTS_MAX = 12
BACKOFF = Backoff(first_s=5.0, factor=4.0, cap_s=6 * 3600.0)
"""With `ATTEMPTS_MAX`: a receiver may be away for more than a day."""
SENDING_S = 60.0
"""For how long a post that is being sent is left alone. More than a try may take."""
DELIVERED_KEPT_S = 7 * 24 * 3600.0
FAILED_KEPT_S = 30 * 24 * 3600.0

ENABLED = "enabled"
DISABLED = "disabled"
"""The receiver said that it is gone (410), or a person did. Events pass it by."""


class PostState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Nobody tries any more, unless a person asks for it."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    name: str
    url: str
    events: tuple[str, ...]
    """Kinds, or families ending in `*`. None: only what names the webhook is posted to it."""
    secrets: tuple[str, ...]
    """What posts are signed with. The first is the newest; one more while receivers change over."""
    old_secret_until: float = 0.0
    cursor: int = 0
    """The number of the last event that it has posts for, as far as it wanted them."""
    looked_at: float = 0.0
    """When it was last written that its events were read: whose turn is longest ago is read first."""
    enabled: bool = True
    why_disabled: str = ""
    created_at: float
    version: int = 0
    """Of its record; 0 before there is one."""

    def __repr__(self) -> str:
        # No secret reaches a log by way of a traceback.
        return f"Webhook({self.tenant!r}, {self.name!r})"

    def wants(self, kind: str) -> bool:
        return fits(kind, *self.events)

    def is_meant(self, post: Post) -> bool:
        """Whether the post was written for this one, and not for one that had its name before."""
        return post.made_for in (0.0, self.created_at)

    def secrets_at(self, now: float) -> tuple[str, ...]:
        return self.secrets if now < self.old_secret_until else self.secrets[:1]


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One try to deliver a post, as the log shows it."""

    at: float
    status: int | None
    """None: there was no answer."""
    error: str
    """A stable code; empty if it arrived."""
    took_s: float


class Post(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    id: str
    """The `webhook-id` of every try: a receiver knows a repetition by it."""
    webhook: str
    made_for: float = 0.0
    """When that webhook was added: by the time a post is tried another may have its name. 0: for whoever has it."""
    event: str
    content: str
    """What is sent and signed, to the letter."""
    state: PostState
    tries: tuple[Try, ...] = ()
    begun: int = 0
    """Tries that were begun. One more than `tries` while one is under way, or after a crash in it."""
    bound: int = ATTEMPTS_MAX
    """Tries it may have. A person's word adds to them."""
    due: float | None
    created_at: float
    version: int = 0


class _WebhookBody(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    events: tuple[str, ...]
    secrets: tuple[str, ...]
    old_secret_until: float
    cursor: int
    why_disabled: str


class _PostBody(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    content: str
    tries: tuple[Try, ...]
    begun: int
    bound: int
    made_for: float = 0.0


def webhook_record(webhook: Webhook) -> Record:
    """As it is to be stored, one version on."""
    body = _WebhookBody(
        url=webhook.url,
        events=webhook.events,
        secrets=webhook.secrets,
        old_secret_until=webhook.old_secret_until,
        cursor=webhook.cursor,
        why_disabled=webhook.why_disabled,
    )
    return Record(
        kind=Kind.WEBHOOK,
        tenant=webhook.tenant,
        id=webhook.name,
        version=webhook.version + 1,
        state=ENABLED if webhook.enabled else DISABLED,
        # Always due: whoever looks finds all that are to be looked at, in one read.
        due=webhook.looked_at if webhook.enabled and webhook.events else None,
        created_at=webhook.created_at,
        body=msgspec.json.encode(body),
    )


def webhook_from(record: Record) -> Webhook:
    body = msgspec.json.decode(record.body, type=_WebhookBody)
    return Webhook(
        tenant=record.tenant,
        name=record.id,
        url=body.url,
        events=body.events,
        secrets=body.secrets,
        old_secret_until=body.old_secret_until,
        cursor=body.cursor,
        looked_at=record.due or 0.0,
        enabled=record.state == ENABLED,
        why_disabled=body.why_disabled,
        created_at=record.created_at,
        version=record.version,
    )


def post_to(webhook: Webhook, event_kind: str, payload: Any, *, key: str, now: float) -> Record:
    """A post to write in the transaction of what it tells: `RecordChange(after=…, replaces=0)`.

    `key` tells the webhook's posts apart; the same one again is the same post, and the transaction
    that repeats it is refused. `payload` is any JSON value, and is sent to the receiver as `data`.
    """
    moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    content = msgspec.json.encode({"type": event_kind, "timestamp": moment, "data": payload}).decode()
    return post_record(
        Post(
            tenant=webhook.tenant,
            id=f"{webhook.name}.{key}",
            webhook=webhook.name,
            made_for=webhook.created_at,
            event=event_kind,
            content=content,
            state=PostState.PENDING,
            due=now,
            created_at=now,
        )
    )


def post_record(post: Post) -> Record:
    body = _PostBody(
        event=post.event,
        content=post.content,
        tries=post.tries,
        begun=post.begun,
        bound=post.bound,
        made_for=post.made_for,
    )
    return Record(
        kind=Kind.POST,
        tenant=post.tenant,
        id=post.id,
        version=post.version + 1,
        state=post.state,
        parent=post.webhook,
        due=post.due,
        created_at=post.created_at,
        body=msgspec.json.encode(body),
    )


def post_from(record: Record) -> Post:
    body = msgspec.json.decode(record.body, type=_PostBody)
    return Post(
        tenant=record.tenant,
        id=record.id,
        webhook=record.parent,
        made_for=body.made_for,
        event=body.event,
        content=body.content,
        state=PostState(record.state),
        tries=body.tries,
        begun=body.begun,
        bound=body.bound,
        due=record.due,
        created_at=record.created_at,
        version=record.version,
    )


# -- the tries of a post -----------------------------------------------------------------------------


class Verdict(StrEnum):
    """What to do about a try, by its answer."""

    ARRIVED = "arrived"
    AGAIN = "again"
    GIVE_UP = "give_up"
    DISABLE = "disable"
    """The receiver is gone for good (410): it is to be told nothing more."""


def begin_try(post: Post, *, now: float) -> Post:
    """Before it is sent: whoever writes this has it to themselves until `SENDING_S` have passed, and a
    try that a crash cuts off has been counted."""
    return replace(post, begun=post.begun + 1, due=now + SENDING_S)


def judge(post: Post, tried: Try) -> Verdict:
    """`post` as `begin_try` left it."""
    if tried.status is not None and 200 <= tried.status < 300:
        return Verdict.ARRIVED
    if tried.status == 410:
        return Verdict.DISABLE
    return Verdict.AGAIN if post.begun < post.bound else Verdict.GIVE_UP


def end_try(post: Post, tried: Try, *, chance: float, wait_s: float = 0.0) -> Post:
    """After it was sent. `chance` spreads the next tries (0.5 to 1); `wait_s` is what the receiver asked for."""
    tries = (*post.tries, tried)
    now = tried.at + tried.took_s
    match judge(post, tried):
        case Verdict.ARRIVED:
            return replace(post, tries=tries, state=PostState.DELIVERED, due=now + DELIVERED_KEPT_S)
        case Verdict.AGAIN:
            pause_s = max(BACKOFF.delay(post.begun, chance), min(wait_s, BACKOFF.cap_s))
            return replace(post, tries=tries, due=now + pause_s)
        case Verdict.GIVE_UP | Verdict.DISABLE:
            return replace(post, tries=tries, state=PostState.FAILED, due=now + FAILED_KEPT_S)


def give_up(post: Post, why: str, *, now: float) -> Post:
    """Without a try: there is nobody to send it to."""
    tried = Try(at=now, status=None, error=why, took_s=0.0)
    return replace(post, tries=(*post.tries, tried), state=PostState.FAILED, due=now + FAILED_KEPT_S)


def try_again(post: Post, *, now: float) -> Post:
    """A person asks for it: at once, with as many tries as a new one, and to whoever has the name by now."""
    return replace(post, state=PostState.PENDING, bound=post.begun + ATTEMPTS_MAX, due=now, made_for=0.0)


# -- signatures --------------------------------------------------------------------------------------


def new_secret(key: bytes) -> str:
    """`key` is 24 to 64 random bytes, by the specification."""
    return PREFIX + base64.b64encode(key).decode()


def rotated(webhook: Webhook, secret: str, *, until: float) -> Webhook:
    """With a new secret. Posts carry signatures of both until `until`, so that no receiver misses one."""
    return replace(webhook, secrets=(secret, webhook.secrets[0]), old_secret_until=until)


def signed_headers(post: Post, secrets: Iterable[str], *, now: float) -> dict[str, str]:
    """The headers of one try. The time is the try's own: receivers refuse an old one as a replay."""
    stamp = str(int(now))
    text = f"{post.id}.{stamp}.{post.content}".encode()
    return {
        "webhook-id": post.id,
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{_signature(secret, text)}" for secret in secrets),
    }


def _signature(secret: str, text: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode()
