"""Workflows: definitions, and their revisions."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import Reply, Request

DOCUMENT_MAX = 1 << 20


class ApplyWorkflow(Request, kw_only=True):
    """`POST /v1/workflows`: a definition as a text, YAML or JSON."""

    document: Annotated[str, Meta(min_length=1, max_length=DOCUMENT_MAX)]
    dry_run: bool = False
    """Only say what is wrong with it, and store nothing: the revision in the answer is 0."""


class WorkflowView(Reply, kw_only=True):
    name: str
    revision: int
    """Counts from 1. A run keeps the one it was started with."""
    description: str
    created_at: float
    steps: list[str]
    graph: str
    """The steps as a Mermaid flowchart."""
    definition: Any
    """As it was understood."""


class WorkflowPage(Reply, kw_only=True):
    items: list[WorkflowView]
    next_cursor: str | None
