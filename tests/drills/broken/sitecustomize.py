"""Loaded by every Python process that a test starts with this folder on its path: the product, done wrong in one way.

$HOLDFAST_TEST_MUTANT names one of the simulation's mutants, or of those below. Nothing in the product knows of it.
"""

from __future__ import annotations

import os
from typing import Any


def _broken(name: str) -> Any:
    from simulation.mutant import Mutant

    if name == "no fence check at the resource":
        mutant = Mutant(name, "P1", {"holdfast.locks.guards.sqlite.ApswGuard.recognise": _let_pass})
    else:
        from simulation import lock_mutants, plane_mutants

        [mutant] = [one for one in (*lock_mutants.MUTANTS, *plane_mutants.MUTANTS) if one.name == name]
    return mutant.on()


def _let_pass(self: Any, *_: Any) -> None:
    """Whoever comes with a fence that is too low: the write is made all the same."""


if _chosen := os.environ.get("HOLDFAST_TEST_MUTANT"):
    _for_life = _broken(_chosen)  # kept: what nobody refers to any more is undone
    _for_life.__enter__()
