"""A caller's own value as JSON, or an error: never something else than was meant."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def to_json(value: Any) -> bytes:
    """Raises `ValueError` for a number that JSON has no word for, and `TypeError` for what is no JSON at all."""
    document = msgspec.json.encode(value)
    # The encoder writes null for these, and nobody would know what was meant. The hook is for what is JSON already.
    if b"null" in document and _has_no_word(msgspec.to_builtins(value, enc_hook=lambda _: None)):
        raise ValueError("NaN and infinity are no JSON: put None or a text in their place")
    return document


def _has_no_word(value: object) -> bool:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return True
        if isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            todo.extend(one)
    return False
