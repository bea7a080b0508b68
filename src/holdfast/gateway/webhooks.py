"""`/v1/webhooks`: where to tell whom about what, and the log of it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast import api
from holdfast.api.webhooks import (
    NewWebhook,
    PostPage,
    PostView,
    RotateSecret,
    TryView,
    WebhookPage,
    WebhookSecret,
    WebhookView,
)
from holdfast.core.record import Kind, Record
from holdfast.core.webhook import (
    DISABLED,
    ENABLED,
    Post,
    PostState,
    Webhook,
    new_secret,
    post_from,
    post_record,
    post_to,
    rotated,
    try_again,
    webhook_from,
    webhook_record,
)
from holdfast.errors import Conflict, TooMany
from holdfast.flow.audit import Entry
from holdfast.flow.keep import add_record, change_record, remove_record, write_record
from holdfast.flow.submit import new_id
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.gateway.pages import Cursor, Limit, PageQuery, cut, from_cursor, newest_first, read_records
from holdfast.locks.runtime import Runtime
from holdfast.posting.address import check_url

WEBHOOKS_MAX = 50
"""Of one tenant."""


class PostQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100
    state: PostState | None = None


async def add_webhook(desk: Desk, call: Call) -> Answer:
    new: NewWebhook = call.body
    plane = desk.plane
    check_url(new.url, allow_private=plane.private_webhooks)
    secret, now = _new_secret(plane.runtime), plane.store.now()
    webhook = Webhook(
        tenant=call.tenant,
        name=new.name,
        url=new.url,
        events=tuple(dict.fromkeys(new.events)),
        secrets=(secret,),
        # From now on: whoever wants the past reads the events.
        cursor=await desk.feed.last_number(),
        looked_at=now,
        created_at=now,
    )
    entry = _entry(desk, call, "webhook.added", new.name)
    async with plane.gate.hold(call.tenant):
        known = await plane.store.count_records(Kind.WEBHOOK, call.tenant, states=(ENABLED, DISABLED))
        if sum(known.values()) >= WEBHOOKS_MAX:
            raise TooMany(f"the tenant has {WEBHOOKS_MAX} webhooks; remove one", retry_after_s=60.0)
        added = await add_record(webhook_record(webhook), store=plane.store, entry=entry)
    if added is None:
        raise Conflict(f"there is a webhook {new.name!r}; remove it first, or take another name")
    return Answer(WebhookSecret(webhook=_view(webhook_from(added), now), secret=secret))


def _new_secret(runtime: Runtime) -> str:
    return new_secret(bytes.fromhex(runtime.token() + runtime.token()))


async def list_webhooks(desk: Desk, call: Call) -> Answer:
    query: PageQuery = call.query
    found = await desk.plane.store.list_records(
        Kind.WEBHOOK, call.tenant, after=from_cursor(query.cursor), limit=query.limit + 1
    )
    page, more = cut(found, query.limit, lambda record: record.id)
    now = desk.plane.store.now()
    return Answer(WebhookPage(items=[_view(webhook_from(record), now) for record in page], next_cursor=more))


async def get_webhook(desk: Desk, call: Call) -> Answer:
    return Answer(_view(await _get(desk, call), desk.plane.store.now()))


async def remove_webhook(desk: Desk, call: Call) -> Answer:
    """Its log stays for as long as that of others; what has not arrived fails."""
    name = call.path["name"]
    entry = _entry(desk, call, "webhook.removed", name)
    await remove_record(Kind.WEBHOOK, call.tenant, name, store=desk.plane.store, entry=entry)
    return Answer(api.Nothing())


async def enable_webhook(desk: Desk, call: Call) -> Answer:
    """From now on: what happened while it was disabled is not posted."""
    last, now = await desk.feed.last_number(), desk.plane.store.now()

    def enabled(webhook: Webhook) -> Webhook:
        if webhook.enabled:
            return webhook
        return replace(webhook, enabled=True, why_disabled="", cursor=last, looked_at=now)

    return Answer(_view(await _change(desk, call, enabled, action="webhook.enabled"), now))


async def rotate_secret(desk: Desk, call: Call) -> Answer:
    wanted: RotateSecret = call.body
    secret, now = _new_secret(desk.plane.runtime), desk.plane.store.now()

    def change(webhook: Webhook) -> Webhook:
        return rotated(webhook, secret, until=now + wanted.overlap_s)

    webhook = await _change(desk, call, change, action="webhook.rotated")
    return Answer(WebhookSecret(webhook=_view(webhook, now), secret=secret))


async def test_webhook(desk: Desk, call: Call) -> Answer:
    """Post something that means nothing; the log says what became of it."""
    webhook = await _get(desk, call)
    key = f"{new_id(desk.plane.runtime)}-test"
    record = post_to(webhook, "webhook.tested", {"webhook": webhook.name}, key=key, now=desk.plane.store.now())
    await write_record(record, store=desk.plane.store)
    return Answer(_post_view(post_from(record)), status=202)


async def list_posts(desk: Desk, call: Call) -> Answer:
    """Also of a webhook that was removed: what became of its last posts is asked for most of all then."""
    query: PostQuery = call.query
    read = newest_first(desk.plane.store, Kind.POST, call.tenant, state=query.state, parent=call.path["name"])
    page, more = await read_records(read, query.cursor, query.limit)
    if not page:
        await _get(desk, call)  # raises, if there never was one
    return Answer(PostPage(items=[_post_view(post_from(record)) for record in page], next_cursor=more))


async def retry_post(desk: Desk, call: Call) -> Answer:
    """Try a post that failed again, at once and with as many tries as a new one."""
    store, post_id = desk.plane.store, call.path["id"]
    entry = entry_of(desk, call, "post.retried", f"post/{post_id}")

    def again(record: Record) -> Record:
        post = post_from(record)
        if post.state is not PostState.FAILED:
            raise Conflict(f"the post is {post.state}: only one that has failed is tried again")
        return post_record(try_again(post, now=store.now()))

    record = await change_record(Kind.POST, call.tenant, post_id, again, store=store, entry=entry)
    return Answer(_post_view(post_from(record)), status=202)


async def _get(desk: Desk, call: Call) -> Webhook:
    return webhook_from(await desk.plane.store.get_record(Kind.WEBHOOK, call.tenant, call.path["name"]))


def _entry(desk: Desk, call: Call, action: str, name: str) -> Entry:
    return entry_of(desk, call, action, f"webhook/{name}")


async def _change(desk: Desk, call: Call, change: Callable[[Webhook], Webhook], *, action: str) -> Webhook:
    def changed(record: Record) -> Record:
        return webhook_record(change(webhook_from(record)))

    # The courier writes it too, whenever it has read on.
    store, name = desk.plane.store, call.path["name"]
    entry = _entry(desk, call, action, name)
    return webhook_from(await change_record(Kind.WEBHOOK, call.tenant, name, changed, store=store, entry=entry))


def _view(webhook: Webhook, now: float) -> WebhookView:
    return WebhookView(
        name=webhook.name,
        url=webhook.url,
        events=list(webhook.events),
        enabled=webhook.enabled,
        why_disabled=webhook.why_disabled,
        cursor=webhook.cursor,
        secrets=len(webhook.secrets_at(now)),
        created_at=webhook.created_at,
        version=webhook.version,
    )


def _post_view(post: Post) -> PostView:
    return PostView(
        id=post.id,
        webhook=post.webhook,
        event=post.event,
        state=post.state,
        due=post.due,
        created_at=post.created_at,
        tries=[TryView(at=one.at, status=one.status, error=one.error, took_s=one.took_s) for one in post.tries],
    )


_TAGS = ("webhooks",)

WEBHOOK_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST", path="/v1/webhooks", run=add_webhook, request=NewWebhook, reply=WebhookSecret, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Add a webhook. Its secret is told here, and never again.",
    ),
    Route(
        method="GET", path="/v1/webhooks", run=list_webhooks, query=PageQuery, reply=WebhookPage, tags=_TAGS,
        summary="Webhooks by name.",
    ),
    Route(
        method="GET", path="/v1/webhooks/{name}", run=get_webhook, reply=WebhookView, tags=_TAGS,
        summary="One webhook, without its secret.",
    ),
    Route(
        method="POST", path="/v1/webhooks/{name}:remove", run=remove_webhook, reply=api.Nothing, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Remove a webhook. What has not arrived fails; the log stays for a while.",
    ),
    Route(
        method="POST", path="/v1/webhooks/{name}:enable", run=enable_webhook, reply=WebhookView, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Post to a disabled webhook again, what happens from now on.",
    ),
    Route(
        method="POST", path="/v1/webhooks/{name}:rotate", run=rotate_secret, request=RotateSecret, optional=True,
        reply=WebhookSecret, headers=("Holdfast-Actor",), tags=_TAGS,
        summary="A new secret. For a while posts are signed with the old one too.",
    ),
    Route(
        method="POST", path="/v1/webhooks/{name}:test", run=test_webhook, reply=PostView, statuses=(202,), tags=_TAGS,
        summary="Post something that means nothing.",
    ),
    Route(
        method="GET", path="/v1/webhooks/{name}/posts", run=list_posts, query=PostQuery, reply=PostPage, tags=_TAGS,
        summary="The delivery log of a webhook, newest first, without what was sent.",
    ),
    Route(
        method="POST", path="/v1/posts/{id}:retry", run=retry_post, reply=PostView, statuses=(202,),
        headers=("Holdfast-Actor",), tags=_TAGS, summary="Try a failed post again, under the same id.",
    ),
)  # fmt: skip
