"""What can be asked about webhooks, as values; see `asks`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.api.webhooks import (
    NewWebhook,
    PostPage,
    PostView,
    RotateSecret,
    WebhookPage,
    WebhookSecret,
    WebhookView,
)
from holdfast.client.asks import Ask, get_ask, part, post_ask, read_as


def add_webhook(name: str, url: str, *, events: Sequence[str] = ()) -> Ask[WebhookSecret]:
    """Add a webhook. Its secret is in the answer, and nobody can ask for it again."""
    body = NewWebhook(name=name, url=url, events=list(events))
    return post_ask("/v1/webhooks", read_as(WebhookSecret), body)


def webhooks(*, cursor: str | None = None, limit: int = 100) -> Ask[WebhookPage]:
    """A page of webhooks, by name."""
    return get_ask("/v1/webhooks", read_as(WebhookPage), ("cursor", cursor), ("limit", limit))


def webhook(name: str) -> Ask[WebhookView]:
    """One webhook, without its secret."""
    return get_ask(f"/v1/webhooks/{part(name)}", read_as(WebhookView))


def remove_webhook(name: str) -> Ask[None]:
    """Remove a webhook. What has not arrived fails; the log stays for a while."""
    return post_ask(f"/v1/webhooks/{part(name)}:remove", lambda _: None)


def enable_webhook(name: str) -> Ask[WebhookView]:
    """Post to it again, what happens from now on."""
    return post_ask(f"/v1/webhooks/{part(name)}:enable", read_as(WebhookView), repeatable=True)


def rotate_webhook_secret(name: str, *, overlap_s: float = 86400.0) -> Ask[WebhookSecret]:
    """A new secret. For `overlap_s` posts are signed with the old one too."""
    return post_ask(f"/v1/webhooks/{part(name)}:rotate", read_as(WebhookSecret), RotateSecret(overlap_s=overlap_s))


def test_webhook(name: str) -> Ask[PostView]:
    """Post something that means nothing; `webhook_posts` tells what became of it."""
    return post_ask(f"/v1/webhooks/{part(name)}:test", read_as(PostView))


def webhook_posts(name: str, *, state: str | None = None, cursor: str | None = None, limit: int = 100) -> Ask[PostPage]:
    """A page of the delivery log, newest first."""
    path = f"/v1/webhooks/{part(name)}/posts"
    return get_ask(path, read_as(PostPage), ("state", state), ("cursor", cursor), ("limit", limit))


def retry_post(post_id: str) -> Ask[PostView]:
    """Try a post that failed again, under the same id."""
    return post_ask(f"/v1/posts/{part(post_id)}:retry", read_as(PostView))
