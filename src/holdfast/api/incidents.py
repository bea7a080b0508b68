"""Incidents."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import NOT_BLANK, Reply, Request

Text = Annotated[str, Meta(pattern=NOT_BLANK, max_length=4000)]
Title = Annotated[str, Meta(pattern=NOT_BLANK, max_length=200)]


class StartIncident(Request, kw_only=True):
    """`POST /v1/incidents`."""

    title: Title
    strict: bool = True
    """Whether the policy matrix is strict for its duration."""


class AddNote(Request, kw_only=True):
    text: Text


class StopIncident(Request, kw_only=True):
    summary: Annotated[str, Meta(max_length=4000)] = ""


class NoteView(Reply, kw_only=True):
    at: float
    by: str
    text: str


class IncidentView(Reply, kw_only=True):
    number: int
    title: str
    by: str
    started_at: float
    stopped_at: float | None
    """null: it is open."""
    strict: bool
    summary: str
    notes: list[NoteView]
    before: dict[str, Any]
    """How things stood when it was started."""
    end: dict[str, Any]


class IncidentPage(Reply, kw_only=True):
    items: list[IncidentView]
    next_cursor: str | None


class TimelineView(Reply, kw_only=True):
    at: float
    kind: str
    """`note`, `did` or `saw`."""
    by: str
    text: str


class IncidentExport(Reply, kw_only=True):
    incident: IncidentView
    timeline: list[TimelineView]
    counts: dict[str, int]
    """Events by kind."""
    cut: bool
    """There was more than is told."""
    markdown: str
    """A draft of the post-mortem."""
