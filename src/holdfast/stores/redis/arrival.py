"""How a plane that was filled in beside its place gets there: decided at once, and then done bit by bit.

To rename a million keys takes seconds, in which the server would do nothing else, for nobody. So it is decided in one
step that they are renamed (`move.lua`), and nobody can write until they all are. Whoever dies in between is followed
by the next one who opens the store, and brings it to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.locks.runtime import Runtime
from holdfast.stores.redis.dump import SCAN, names
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import ARRIVE, ARRIVED, MOVE, PlaneLink
from holdfast.stores.redis.load import text

BESIDE = "moving:"
KEPT = ("settings", "turn")
"""Of what is there before: what is not replaced."""
NAMES_MAX = 500
"""Renamed at once: some milliseconds."""


async def decide(link: PlaneLink, keys: Keys, *, turn: str, arrival: str) -> bool:
    """False if the turn has run out: then nothing has happened, and somebody may have written."""
    here = [name for name in await names(link, keys, keys.prefix) if not name.startswith(BESIDE)]
    going = [f"{keys.prefix}{name}" for name in here if name not in KEPT]
    return bool(await link.run(MOVE, (keys.turn, keys.settings, keys.never), (turn, arrival, *going)))


async def complete(link: PlaneLink, keys: Keys, runtime: Runtime) -> None:
    """Bring what was decided to its end; nothing, if nothing was. Several may do so at once."""
    [arriving] = await link.ask(("HGET", keys.settings, "arriving"))
    if arriving is None:
        return
    arrival, beside = text(arriving), f"{keys.prefix}{BESIDE}"
    there = await names(link, keys, beside)
    coming = [name for name in there if name not in ("head", "turn") and not name.startswith("done:")]
    for start in range(0, len(coming), NAMES_MAX):
        page = coming[start : start + NAMES_MAX]
        if not await link.run(ARRIVE, (keys.settings, keys.never), (arrival, beside, keys.prefix, *page)):
            return
    await link.run(ARRIVED, (keys.head, keys.turn, keys.settings), (arrival, runtime.token()))
    await clear(link, keys)


async def clear(link: PlaneLink, keys: Keys) -> None:
    """Whatever is beside: of somebody who did not come so far as to decide, or not needed any more."""
    left: Sequence[str] = await names(link, keys, f"{keys.prefix}{BESIDE}")
    for start in range(0, len(left), SCAN):
        page = left[start : start + SCAN]
        await link.ask(("UNLINK", *(f"{keys.prefix}{BESIDE}{name}" for name in page)))
