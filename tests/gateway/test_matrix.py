"""The policy matrix over HTTP, on a real plane: shown, changed, tried and taken back."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gateway.conftest import Served
from holdfast import errors
from holdfast.api.matrix import MatrixRow, MatrixRules
from holdfast.core.matrix import governs
from holdfast.wiring import CLASSES


async def row(served: Served, namespace: str = "workflow.run") -> MatrixRow:
    return next(one for one in (await served.client.matrix()).items if one.namespace == namespace)


async def test_a_cell_is_in_force_on_a_running_plane_and_reverts_by_itself(served: Served) -> None:
    before = await row(served)
    made = await served.client.set_matrix(
        "risk=high", MatrixRules(action="continue", failures=5), reason="incident 7", for_s=3, by="ana"
    )
    async with asyncio.timeout(20):
        while (await row(served)).action != "continue":
            await asyncio.sleep(0.05)
        ruled = await row(served)
        while (await row(served)).action != "fence":
            await asyncio.sleep(0.05)
        while (await served.client.matrix()).cells:
            await asyncio.sleep(0.05)
        while len(lines := (await served.client.audit(plane=True, oldest_first=True)).items) < 2:
            await asyncio.sleep(0.05)

    assert (before.action, before.failures, before.release, before.cells) == ("fence", 3, "skip", [])
    assert (ruled.failures, ruled.declared.failures, ruled.cells) == (5, 3, ["risk=high"])
    assert made.until == made.since + 3
    assert [(line.action, line.by, line.reason) for line in lines] == [
        ("matrix.set", "ana", "incident 7"),
        ("matrix.reverted", "", "its time is over"),
    ]


async def test_a_cell_is_taken_back_and_a_bad_one_refused(served: Served) -> None:
    await served.client.set_matrix("namespace=approval", MatrixRules(reacquire_s=1.0), reason="x")
    assert [cell.cell for cell in (await served.client.matrix()).cells] == ["namespace=approval"]
    await served.client.reset_matrix("namespace=approval", reason="enough")

    assert (await served.client.matrix()).cells == []
    with pytest.raises(errors.NotFound):
        await served.client.reset_matrix("namespace=approval", reason="enough")
    with pytest.raises(errors.Invalid, match="no lock of the plane"):
        await served.client.set_matrix("namespace=nobody", MatrixRules(failures=1), reason="x")
    assert (await served.client.simulate_matrix("risk=high", MatrixRules(failures=1))).seen == 0


def test_the_defaults_are_those_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/policy-matrix.md").read_text()
    rows = re.findall(
        r"^\| `([\w.]+)` \| (\w+) \| (\d+) \| `(\w+)` \| `skip` \| ([\d.]+) s \| `(\w+)` \|", page, re.MULTILINE
    )

    assert rows == [
        (c.name, c.risk, str(c.renewal_failures), c.on_renewal_failure, f"{c.wait:g}", c.on_store_error)
        for c in CLASSES
        if governs(c)
    ]
