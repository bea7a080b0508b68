"""Drills about locks alone: the library and its store, without a plane."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.ops.drills.book import entries, stale_accepted
from holdfast.ops.drills.findings import Band, Figure, Sign, Trouble
from holdfast.ops.drills.processes import Process
from holdfast.ops.drills.stage import LEASE_S, TAKEOVER_S_MAX, Stage, Unready
from holdfast.stores import lock_prefix

ITEM = "customer-42"
_SAID = re.compile(r"> \S+ \S+ .+\n")


class Answer(NamedTuple):
    at: float
    said: str


class Holders:
    """Holder processes of one lock, and the bands of those who have it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._prefix = lock_prefix(stage.store.url)
        self._asked: dict[str, int] = {}
        self._bands: dict[str, Band] = {}

    async def start(self, *names: str) -> list[Process]:
        """All of them, connected: what happens to the store next must not keep one from its part."""
        stage = self._stage
        given = (stage.store.url, self._prefix, str(LEASE_S), ITEM, str(stage.folder))
        started = [stage.spawn(name, "holdfast.ops.drills.holder", *given) for name in names]
        for holder in started:
            await self.ask(holder, "ready")
        return started

    async def ask(self, holder: Process, word: str, *, promise: str = "") -> Answer:
        self.tell(holder, word)
        return await self.hear(holder, promise=promise)

    def tell(self, holder: Process, word: str) -> None:
        _check_alive(holder)
        self._asked[holder.name] = self._asked.get(holder.name, 0) + 1
        holder.say(word)

    async def hear(self, holder: Process, *, promise: str = "") -> Answer:
        nth = self._asked[holder.name]
        return await self._stage.until(f"{holder.name} answers", lambda: _answer(holder, nth), promise=promise)

    async def hold(self, holder: Process, *, promise: str = "") -> Answer:
        """Wait until it has the lock, and draw that."""
        self.tell(holder, "hold")
        return await self.held(holder, promise=promise)

    async def held(self, holder: Process, *, promise: str = "") -> Answer:
        answer = await self.hear(holder, promise=promise)
        verb, _, fence = answer.said.partition(" ")
        if verb != "held":
            raise Unready(f"{holder.name} could not have the lock: {answer.said}")
        at = self._stage.moment(answer.at)
        band = Band(lane=holder.name, kind=Trouble.LEASE, start=at, end=None, label=f"has the lock, fence {fence}")
        self._stage.report.timeline.bands.append(band)
        self._bands[holder.name] = band
        return answer

    def ends(self, holder: Process, at: float) -> None:
        self._bands[holder.name].end = self._stage.moment(at)

    def refused(self, holder: Process, what: str) -> None:
        self._stage.report.timeline.mark(holder.name, Sign.REFUSED, f"{what} refused", at=self._stage.now())


async def _answer(holder: Process, nth: int) -> Answer | None:
    _check_alive(holder)
    lines = [line[:-1].split(" ", 3) for line in holder.answers().splitlines(keepends=True) if _SAID.match(line)]
    return Answer(float(lines[nth - 1][2]), lines[nth - 1][3]) if len(lines) >= nth else None


def _check_alive(holder: Process) -> None:
    if not holder.runs:
        raise Unready(f"{holder.name} ended: {holder.said()[-1000:]}")


async def stale_release(stage: Stage) -> None:
    holders = Holders(stage)
    anna, ben, carl = await holders.start("anna", "ben", "carl")
    await holders.hold(anna)
    stage.tell("anna has the lock")
    band = await stage.paused(anna, "anna is stopped, and does not renew")
    paused_at = stage.now()
    granted = await holders.hold(ben, promise="P2")
    holders.ends(anna, granted.at)
    takeover_s = stage.moment(granted.at) - paused_at
    stage.figure(Figure.TAKEOVER_S, takeover_s)
    stage.figure(Figure.BLIND_S, max(0.0, takeover_s - LEASE_S))
    stage.tell(f"ben is granted the lock, {takeover_s:.2f} s after anna was stopped")
    stage.found(
        "P2",
        "time until somebody else was granted the lock",
        round(takeover_s, 3),
        unit="s",
        at_most=LEASE_S + TAKEOVER_S_MAX,
    )

    stage.resumed(anna, band, "anna goes on, and releases what it believes to have")
    by_library = (await holders.ask(anna, "release")).said
    release = (await holders.ask(anna, "stale-release")).said
    renew = (await holders.ask(anna, "stale-renew")).said
    holders.refused(anna, "release")
    stage.tell(f"anna's release: {by_library}; its old token at the store: release {release}, renew {renew}")
    stage.found("P3", "stale releases that the library let through", by_library == "released", at_most=0)
    stage.found("P3", "stale releases that the store took", release == "taken", at_most=0)
    stage.found("P3", "stale renewals that the store took", renew == "taken", at_most=0)
    stage.figure(Figure.STALE_REFUSED, (by_library != "released") + (release == "refused") + (renew == "refused"))
    taken = (await holders.ask(carl, "try")).said.startswith("held")
    stage.found("P3", "others who could take the lock while ben had it", taken, at_most=0)
    await _owner_is_undisturbed(stage, holders, ben)


async def _owner_is_undisturbed(stage: Stage, holders: Holders, owner: Process) -> None:
    renewed = (await holders.ask(owner, "stale-renew")).said
    state = (await holders.ask(owner, "state")).said
    released = (await holders.ask(owner, "release")).said
    stage.tell(f"{owner.name} is {state}, and releases the lock itself: {released}")
    stage.found(
        "P3", "the owner's lease is its own to the end", (renewed, released) == ("taken", "released"), at_least=1
    )


async def lease_storm(stage: Stage) -> None:
    """Renewal failure, expiry and stale releases, one upon the other."""
    holders = Holders(stage)
    anna, ben, carl = await holders.start("anna", "ben", "carl")
    await holders.hold(anna)
    await holders.ask(anna, "write")
    await stage.store.outage()
    stage.fault("anna", "the store is taken away: anna cannot renew")
    band = stage.begin("anna", Trouble.OUTAGE, "store away: renewals fail")
    lost = await stage.until("anna gives up", lambda: _lost(holders, anna), promise="P2")
    holders.ends(anna, lost.at)
    await stage.store.heal()
    stage.finish(band)
    stage.tell(f"anna has given up ({lost.said}); the store is back")
    granted = await holders.hold(ben, promise="P2")
    overlap_s = lost.at - granted.at
    stage.found(
        "P2", "time in which both believed to have the lock (negative: a gap)", round(overlap_s, 3), unit="s", at_most=0
    )
    await holders.ask(ben, "write")

    pause = await stage.paused(ben, "ben is stopped, and does not renew")
    paused_at = stage.now()
    granted = await holders.hold(carl, promise="P2")
    holders.ends(ben, granted.at)
    stage.figure(Figure.TAKEOVER_S, stage.moment(granted.at) - paused_at)
    await holders.ask(carl, "write")
    stage.resumed(ben, pause, "ben goes on; anna and ben write, renew and release what they had")
    refused = [await _late_words(stage, holders, late) for late in (anna, ben)]
    stage.found(
        "P1", "writes under an older fence that the resource accepted", stale_accepted(entries(stage.folder)), at_most=0
    )
    stage.found("P1", "late writes refused", sum("write" in words for words in refused), at_least=2, at_most=2)
    stage.found(
        "P3",
        "late releases and renewals refused",
        sum(len(words - {"write"}) for words in refused),
        at_least=4,
        at_most=4,
    )
    stage.figure(Figure.STALE_REFUSED, sum(map(len, refused)))
    await _owner_is_undisturbed(stage, holders, carl)


async def _lost(holders: Holders, holder: Process) -> Answer | None:
    answer = await holders.ask(holder, "state")
    return answer if answer.said != "trusted" else None


async def _late_words(stage: Stage, holders: Holders, late: Process) -> set[str]:
    words = ("write", "stale-release", "stale-renew")
    refused = {word for word in words if (await holders.ask(late, word)).said == "refused"}
    for word in sorted(refused):
        holders.refused(late, word)
    stage.tell(f"{late.name}, late: {', '.join(sorted(refused)) or 'nothing'} refused")
    return refused
