"""Soak real servers for some minutes: `make soak MINUTES=30`. Ends with 7 if a promise was broken or something leaked."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import backends
from harness import make_backend
from progress import PROGRESS

from soak.fleet_soak import FLEETS, nats_server, soak_fleet, store_server
from soak.herd_soak import Herd, soak_herd
from soak.lock_set import VIOLATED
from soak.lock_soak import Tally, soak_locks
from soak.plane_soak import soak_plane

PLANE = "plane"
HERD = "herd"


def soak(what: str, *, seconds: float, tells: bool) -> Tally:
    """One store, or the plane, on servers and in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as directory:
        if what == PLANE:
            return asyncio.run(soak_plane(Path(directory), seconds=seconds, tells=tells))
        if what in FLEETS:
            return asyncio.run(soak_fleet(what, Path(directory), seconds=seconds, tells=tells))
        if what == HERD:
            with store_server("postgres") as store, nats_server() as nats:
                return asyncio.run(soak_herd(store.url, nats, Herd()))
        backend = make_backend(what, {}, Path(directory))
        try:
            return asyncio.run(soak_locks(backend, Path(directory), seconds=seconds, tells=tells))
        finally:
            if backend.server is not None:
                backend.server.remove()


def table(tallies: Sequence[Tally]) -> str:
    lines = [
        "| | acknowledged | strikes | seconds | memory, files, connections, tasks: early → late | violations |",
        "|---|---|---|---|---|---|",
    ]
    for tally in tallies:
        ends = [(tally.samples[len(tally.samples) // 10], tally.samples[-1])] if tally.samples else []
        grown = ", ".join(f"{a:.0f} → {b:.0f}" for early, late in ends for a, b in zip(early, late, strict=True))
        lines.append(
            f"| {tally.what} | {len(tally.acknowledged):,} | {tally.strikes} | {tally.seconds:.0f} | {grown} "
            f"| {len(tally.violations)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    everything = [*backends.NAMES, PLANE, *FLEETS, HERD]
    parser.add_argument("what", nargs="*", help=f"{', '.join(everything)}; all of them if none is named")
    asked = parser.parse_args()
    wanted = asked.what or everything
    unknown = set(wanted) - set(everything)
    if unknown:
        parser.error(f"no such store: {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    tallies = []
    for what in wanted:
        tallies.append(soak(what, seconds=60 * asked.minutes / len(wanted), tells=True))
        PROGRESS.end()
    print(f"\n{table(tallies)}")
    for tally in tallies:
        if tally.figures:
            print(f"{tally.what}: {', '.join(f'{name} {number:,}' for name, number in tally.figures.items())}")
    violations = [f"{tally.what}: {found}" for tally in tallies for found in tally.violations]
    for found in violations:
        print(f"BROKEN {found}")
    return VIOLATED if violations else 0


if __name__ == "__main__":
    sys.exit(main())
