"""Where the log of events ends."""

from __future__ import annotations

from holdfast.ports import Store


async def newest_number(store: Store, *, at_least: int) -> int:
    """Of the newest event, being no less than that; 0 if there is none."""
    # Found by halving what lies beyond what is known, which is mostly nothing.
    low, step = at_least, 1
    while await store.list_events(after=low + step - 1, limit=1):
        low, step = low + step, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if await store.list_events(after=middle - 1, limit=1):
            low = middle
        else:
            high = middle
    return low
