"""What stands in the place of something of the product while a story is told.

As `unittest.mock.patch` does it, which looks each name up anew: with a dozen of them that takes longer than a story should.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

INHERITED = object()


@contextmanager
def standing_in(stand_ins: Mapping[str, Any]) -> Iterator[None]:
    """Dotted name → what stands there instead, until the end of the block."""
    places = [_find(name) for name in stand_ins]
    before = [vars(owner).get(name, INHERITED) for owner, name in places]
    for (owner, name), stand_in in zip(places, stand_ins.values(), strict=True):
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for (owner, name), own in zip(places, before, strict=True):
            if own is INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


@functools.cache
def _find(target: str) -> tuple[Any, str]:
    owner, _, name = target.rpartition(".")
    found = pkgutil.resolve_name(owner)
    assert hasattr(found, name), f"there is no {target}"
    return found, name
