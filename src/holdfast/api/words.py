"""What the types of all resources are made of, and the two answers that any of them may give."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}$(?!\n)"
Name = Annotated[str, Meta(pattern=NAME)]
"""Topics, pools, worker ids, effect keys. (Python's `$` alone would let a newline end the name.)"""
NO_NUL = r"^[^\x00]*$"
"""Text of somebody's own that is kept as text, not inside of JSON: Postgres has no NUL, and what one store takes another must."""
Label = Annotated[str, Meta(max_length=256, pattern=NO_NUL)]
Labels = Annotated[dict[Name, Label], Meta(max_length=32)]
Fence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Session = Annotated[str, Meta(max_length=128, pattern=NO_NUL)]
JobRef = Annotated[str, Meta(min_length=1, max_length=128)]


NOT_BLANK = r"[^\s\x00-\x1f\x85\ufeff]"
"""A pattern for what says something. (What is a space differs between the dialects of patterns.)"""


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class Reply(Struct, kw_only=True):
    pass


class Nothing(Reply, kw_only=True):
    pass


class Problem(Reply, kw_only=True):
    """RFC 9457. `code` is stable; `type` is its page."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    instance: str = ""
    retryable: bool = False
    job_id: str | None = None
    current_fence: int | None = None
    decided_by: str | None = None
    """With already-decided: who was first; empty where time was."""
    decision: str | None = None
    decided_at: float | None = None


def json_value(raw: bytes | None) -> Any:
    """A stored JSON document as a value to answer with, without decoding it."""
    return None if raw is None else msgspec.Raw(raw)
