"""The models hold, and every rule in them is needed: without it, a named promise is broken."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from models.tlc import Verdict, check

GRANTS = {"Grants": "5"}
SHORT = {"Grants": "3"}
LOCK_INVARIANTS = ("FencesGrow", "AcceptedGrow", "NoUpdateLost", "OneHolder", "HolderServed")

OUTAGE = {"Schedulers": "{s1, s2}", "AttemptsMax": "2", "UnstartedMax": "2", "FaultsMax": "2"}
#: What must happen some day is dear to check: one scheduler, but more goes wrong.
LONG_OUTAGE = OUTAGE | {"Schedulers": "{s1}", "FaultsMax": "3"}
DISPATCH_INVARIANTS = ("StateBeforePublish", "OnePublishPerFence", "OneEndPerAttempt", "TerminalIsFinal")

FAILOVER = {"Skew": "2", "Gap": "3", "PerTick": "1", "Spike": "0", "TimeMax": "8"}


def defect(name: str) -> dict[str, str]:
    return {"Defect": f'"{name}"'}


class Model(NamedTuple):
    spec: str
    constants: dict[str, str]
    invariants: tuple[str, ...] = ()
    property_: str = ""
    states_min: int = 0
    """Fewer would mean that a rule has stopped the world, and that the rest was never looked at."""

    def check(self, directory: Path) -> Verdict:
        constants = defect("none") | self.constants
        return check(self.spec, constants, invariants=self.invariants, property_=self.property_, directory=directory)


HOLDING = {
    "lock": Model("Lock", GRANTS, LOCK_INVARIANTS, states_min=20_000),
    "dispatch": Model("Dispatch", OUTAGE, DISPATCH_INVARIANTS, states_min=80_000),
    "dispatch ends": Model("Dispatch", LONG_OUTAGE, property_="EveryJobEnds", states_min=15_000),
    "fence, skew 2 of 3": Model("HybridFence", FAILOVER, ("FencesGrow",), states_min=40_000),
    "fence, skew 1 of 2": Model(
        "HybridFence", FAILOVER | {"Skew": "1", "Gap": "2"}, ("FencesGrow",), states_min=20_000
    ),
    "fence, skew 0 of 1": Model("HybridFence", FAILOVER | {"Skew": "0", "Gap": "1"}, ("FencesGrow",), states_min=5_000),
}

LOCK_DEFECTS = {
    "split fence": "FencesGrow",
    "no fence": "NoUpdateLost",
    "unfenced read": "NoUpdateLost",
    "no seq": "NoUpdateLost",
    "strict fence": "HolderServed",
    "blind release": "OneHolder",
}
DISPATCH_DEFECTS = {
    "publish first": "StateBeforePublish",
    "publish unanswered": "StateBeforePublish",
    "blind rollback": "TerminalIsFinal",
    "rollback takes fence back": "OnePublishPerFence",
    "blind dispatch": "TerminalIsFinal",
    "fence reused": "OneEndPerAttempt",
    "outcome unfenced": "OneEndPerAttempt",
}
UNENDING = ("no dispatch timeout", "no lease expiry")
FENCE_DEFECTS = ("counter only", "clock only", "split brain")
#: Beyond the bounds of the promise: what is said in `docs/explanation/limits.md`, and why.
BEYOND = {
    "skew as large as the gap": {"Skew": "3"},
    "two fences in a tick": {"PerTick": "2"},
    "a clock that was wrong before": {"Skew": "0", "Spike": "4"},
}


#: Each asks for one promise, and must not get it.
VIOLATING = (
    {f"lock: {name}": Model("Lock", SHORT | defect(name), (asked,)) for name, asked in LOCK_DEFECTS.items()}
    | {
        f"dispatch: {name}": Model("Dispatch", OUTAGE | defect(name), (asked,))
        for name, asked in DISPATCH_DEFECTS.items()
    }
    | {
        f"dispatch: {name}": Model("Dispatch", LONG_OUTAGE | defect(name), property_="EveryJobEnds")
        for name in UNENDING
    }
    | {f"fence: {name}": Model("HybridFence", FAILOVER | defect(name), ("FencesGrow",)) for name in FENCE_DEFECTS}
    | {f"fence: {name}": Model("HybridFence", FAILOVER | beyond, ("FencesGrow",)) for name, beyond in BEYOND.items()}
    # No defect: a failover does lose fences here, else growing ones would be nothing to show.
    | {"fence: a failover loses some": Model("HybridFence", FAILOVER, ("NothingLost",))}
)


@pytest.mark.parametrize("name", HOLDING)
def test_model_holds(name: str, tmp_path: Path) -> None:
    model = HOLDING[name]

    verdict = model.check(tmp_path)

    assert verdict.violated == "", verdict.report
    assert verdict.states >= model.states_min


@pytest.mark.parametrize("name", VIOLATING)
def test_model_without_a_rule_is_violated(name: str, tmp_path: Path) -> None:
    model = VIOLATING[name]

    verdict = model.check(tmp_path)

    assert (verdict.violated,) == (model.invariants or (model.property_,)), verdict.report
