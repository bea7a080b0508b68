"""Every mutant, by the kind of story that has to catch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulation import (
    governed_mutants,
    lock_mutants,
    plane_mutants,
    redis_mutants,
    redis_plane_mutants,
    session_mutants,
)
from simulation.mutant import Mutant

MUTANTS: Mapping[str, Sequence[Mutant]] = {
    "lock": lock_mutants.MUTANTS,
    "redis": redis_mutants.MUTANTS,
    "plane": plane_mutants.MUTANTS,
    "governed": governed_mutants.MUTANTS,
    "sessions": session_mutants.MUTANTS,
    "plane-redis": redis_plane_mutants.MUTANTS,
}
