"""Webhooks, and the log of what was posted to them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.api.words import Reply, Request

WebhookName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$(?!\n)")]
EventKinds = Annotated[str, Meta(pattern=r"^([a-z_.]{1,63}\*?|\*)$(?!\n)")]
"""A kind, such as `run.failed`, or a family ending in `*`."""
DAY_S = 24 * 3600.0


class NewWebhook(Request, kw_only=True):
    """`POST /v1/webhooks`. Without `events` it gets only what a step of a run posts to it by name."""

    name: WebhookName
    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    events: Annotated[list[EventKinds], Meta(max_length=50)] = []


class WebhookView(Reply, kw_only=True):
    name: str
    url: str
    events: list[str]
    enabled: bool
    why_disabled: str
    cursor: int
    """The number of the last event that it has been written posts for."""
    secrets: int
    """How many its posts are signed with now: two while a rotation is under way."""
    created_at: float
    version: int


class WebhookSecret(Reply, kw_only=True):
    """Told once: nobody can ask for the secret again."""

    webhook: WebhookView
    secret: str


class WebhookPage(Reply, kw_only=True):
    items: list[WebhookView]
    next_cursor: str | None


class RotateSecret(Request, kw_only=True):
    overlap_s: Annotated[float, Meta(ge=0, le=30 * DAY_S)] = DAY_S
    """For how long posts carry signatures of both secrets."""


class TryView(Reply, kw_only=True):
    at: float
    status: int | None
    """Of the answer; null if there was none."""
    error: str
    took_s: float


class PostView(Reply, kw_only=True):
    """A line of the delivery log. What was sent is not in it."""

    id: str
    """The `webhook-id` of each of its tries."""
    webhook: str
    event: str
    state: str
    due: float | None
    """When it is tried next; for one that is done with, when it leaves the log."""
    created_at: float
    tries: list[TryView]


class PostPage(Reply, kw_only=True):
    items: list[PostView]
    next_cursor: str | None
