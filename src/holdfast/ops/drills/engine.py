"""One drill from hypothesis to verdict: prepare, inject, measure, restore, judge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.locks.errors import LockError
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.drills.attempts import draw_attempts
from holdfast.ops.drills.findings import Finding, Report
from holdfast.ops.drills.site import Site
from holdfast.ops.drills.stage import Stage, Unmet, Unready, open_stage, wall_s

Say = Callable[[str, str], None]
"""Told the drill and what it does."""

DRILL_S_MAX = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    name: str
    title: str
    promises: tuple[str, ...]
    hypothesis: str
    play: Callable[[Stage], Awaitable[None]]
    on_staging: bool = False
    """Safe against a plane that others use: it brings its own workers and jobs, and touches nothing else."""


async def run_drill(drill: Drill, site: Site, say: Say) -> Report:
    """Carry it out. What goes wrong with the drill itself is in the report, too; only a cancellation passes."""
    report = Report(
        drill=drill.name,
        title=drill.title,
        hypothesis=drill.hypothesis,
        promises=drill.promises,
        site=site.shown,
        began_at=wall_s(),
    )
    began = SYSTEM.now()
    try:
        async with (
            asyncio.timeout(DRILL_S_MAX),
            open_stage(site, report, lambda words: say(drill.name, words)) as stage,
        ):
            try:
                await drill.play(stage)
            finally:
                await draw_attempts(stage)
    except Unmet as unmet:
        report.findings.append(Finding(promise=unmet.promise, claim=str(unmet), measured=0, at_least=1))
    except (Unready, HoldfastError, LockError, OSError, TimeoutError) as error:
        report.trouble = str(error) or type(error).__name__
    report.seconds = SYSTEM.now() - began
    for band in report.timeline.bands:
        band.end = report.seconds if band.end is None else band.end
    return report


async def run_drills(drills: Sequence[Drill], site: Site, *, jobs: int, say: Say) -> list[Report]:
    """All of them, so many at once; reports in their order."""
    room = asyncio.Semaphore(jobs)

    async def one(drill: Drill) -> Report:
        async with room:
            say(drill.name, f"begins: {drill.title}")
            report = await run_drill(drill, site, say)
            say(drill.name, f"{report.verdict}, after {report.seconds:.1f} s")
            return report

    return list(await asyncio.gather(*(one(drill) for drill in drills)))
