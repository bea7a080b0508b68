"""Lists, page by page: what every one of them is asked with, and its cursors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import Meta

from holdfast import api
from holdfast.errors import Invalid
from holdfast.gateway.limits import find_number

T = TypeVar("T")

Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(min_length=1, max_length=1024)]
"""Long enough for the longest key of a lock."""
_STRANGE = "this cursor is not one that a page of this list gave; start without one"


class PageQuery(api.Request, kw_only=True):
    cursor: Cursor | None = None
    limit: Limit = 100


def cut(found: list[T], limit: int, place: Callable[[T], str | int]) -> tuple[list[T], str | None]:
    """A page of what was found, and the cursor of the next one: ask for one more than `limit`, to know."""
    page = found[:limit]
    return page, to_cursor(place(page[-1])) if len(found) > limit else None


def to_cursor(last: str | int) -> str:
    """Where the next page begins. Opaque to callers, so that its meaning may change."""
    return base64.urlsafe_b64encode(f"1:{last}".encode()).decode().rstrip("=")


def from_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, _, last = base64.b64decode(padded, altchars="-_", validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        version, last = "", ""
    if version != "1" or not last:
        raise Invalid(_STRANGE)
    return last


def number_from_cursor(cursor: str | None) -> int | None:
    last = from_cursor(cursor)
    if last is None:
        return None
    number = find_number(last)
    if number is None:
        raise Invalid(_STRANGE)
    return number
