"""Who asks: the name a caller gives itself in `Holdfast-Actor`, or the one that its key proves (`gateway/keys.py`);
and by which face."""

from __future__ import annotations

import re
from functools import lru_cache

from holdfast.core.people import ACTOR
from holdfast.errors import Invalid
from holdfast.gateway.calls import Call

VIA = r"^[a-z][a-z0-9_.-]{0,31}$"


def find_actor(call: Call) -> str:
    """The caller's name; empty if it gives none. Raises `Invalid` for what is no name."""
    header = call.headers.get(b"holdfast-actor")
    return "" if header is None else _named(header)


def get_actor(call: Call) -> str:
    """As `find_actor`, where a name must be given."""
    actor = find_actor(call)
    if not actor:
        raise Invalid("it must be known who says this: send your name in the header Holdfast-Actor")
    return actor


def find_via(call: Call) -> str:
    """By which face the caller speaks, in its own word. Raises `Invalid` for what is none."""
    via = call.header(b"holdfast-via") or "http"
    if not re.fullmatch(VIA, via):
        raise Invalid(f"Holdfast-Via must match {VIA}")
    return via


@lru_cache(1024)
def _named(header: bytes) -> str:
    text = header.decode("latin-1")
    if not re.fullmatch(ACTOR, text):
        raise Invalid(f"Holdfast-Actor must match {ACTOR}")
    return text
