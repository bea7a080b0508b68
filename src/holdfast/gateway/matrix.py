"""`/v1/matrix`: what holders do when renewals fail, by risk and namespace; changed for a while, and tried on the last day."""

from __future__ import annotations

from msgspec.structs import asdict

from holdfast.api.matrix import (
    CellView,
    EpisodeView,
    MatrixRow,
    MatrixRules,
    MatrixSimulation,
    MatrixView,
    ResetCell,
    SetCell,
    SimulateCell,
)
from holdfast.core.matrix import RELEASE, Cell, Rules, cells_over, governs
from holdfast.core.policy_version import PLANE
from holdfast.flow.matrix import list_cells, reset_cell, set_cell, simulate
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.entries import entry_of
from holdfast.locks.policy import LockClass


async def get_matrix(desk: Desk, _: Call) -> Answer:
    store = desk.plane.store
    now = store.now()
    cells = [cell for cell in await list_cells(store=store) if not cell.has_ended(now)]
    in_force = {one.name: one for one in desk.plane.locks.classes()}
    rows = [_row(one, in_force[one.name], cells, now) for one in desk.plane.classes if governs(one)]
    return Answer(MatrixView(items=rows, cells=[_view(cell) for cell in cells]))


async def set_matrix(desk: Desk, call: Call) -> Answer:
    wanted: SetCell = call.body
    plane = desk.plane
    cell = Cell(
        selector=wanted.cell,
        rules=Rules(**asdict(wanted.rules)),
        reason=wanted.reason,
        by=find_actor(call),
        since=plane.store.now(),
        until=None,
    )
    entry = entry_of(desk, call, "matrix.set", f"matrix/{wanted.cell}", reason=wanted.reason, tenant=PLANE)
    made = await set_cell(cell, classes=plane.classes, for_s=wanted.for_s, store=plane.store, entry=entry)
    return Answer(_view(made))


async def reset_matrix(desk: Desk, call: Call) -> Answer:
    wanted: ResetCell = call.body
    entry = entry_of(desk, call, "matrix.reverted", f"matrix/{wanted.cell}", reason=wanted.reason, tenant=PLANE)
    cell = await reset_cell(wanted.cell, reason=wanted.reason, by=find_actor(call), store=desk.plane.store, entry=entry)
    return Answer(_view(cell))


async def simulate_matrix(desk: Desk, call: Call) -> Answer:
    wanted: SimulateCell = call.body
    plane = desk.plane
    found = await simulate(
        wanted.cell,
        Rules(**asdict(wanted.rules)),
        classes=plane.classes,
        cells=await list_cells(store=plane.store),
        store=plane.store,
    )
    items = [
        EpisodeView(
            namespace=one.episode.namespace,
            failures=one.episode.failures,
            count=one.times,
            was=one.episode.ending,
            would=one.would,
            changed=one.changed,
        )
        for one in found
    ]
    return Answer(
        MatrixSimulation(
            items=items,
            seen=sum(item.count for item in items),
            changed=sum(item.count for item in items if item.changed),
        )
    )


def _row(declared: LockClass, now_ruled: LockClass, cells: list[Cell], now: float) -> MatrixRow:
    return MatrixRow(
        namespace=declared.name,
        risk=declared.risk,
        failures=now_ruled.renewal_failures,
        action=now_ruled.on_renewal_failure,
        release=RELEASE,
        reacquire_s=now_ruled.wait,
        fallback=now_ruled.on_store_error,
        declared=MatrixRules(
            failures=declared.renewal_failures,
            action=declared.on_renewal_failure,
            reacquire_s=declared.wait,
            fallback=declared.on_store_error,
        ),
        cells=[cell.selector for cell in cells_over(declared, cells, now=now)],
    )


def _view(cell: Cell) -> CellView:
    return CellView(
        cell=cell.selector,
        rules=MatrixRules(**asdict(cell.rules)),
        reason=cell.reason,
        by=cell.by,
        since=cell.since,
        until=cell.until,
    )


_TAGS = ("policy",)

MATRIX_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/matrix", run=get_matrix, reply=MatrixView, tags=_TAGS,
        summary="What holders of locks do when renewals fail, as the plane that answers goes by it, and the cells that were set.",
    ),
    Route(
        method="POST", path="/v1/matrix:set", run=set_matrix, request=SetCell, reply=CellView,
        headers=("Holdfast-Actor",), tags=_TAGS,
        summary="Change it for a risk or a namespace, on every replica, mostly for a while.",
    ),
    Route(
        method="POST", path="/v1/matrix:reset", run=reset_matrix, request=ResetCell, reply=CellView,
        headers=("Holdfast-Actor",), tags=_TAGS, summary="Take a cell back before its time.",
    ),
    Route(
        method="POST", path="/v1/matrix:simulate", run=simulate_matrix, request=SimulateCell, reply=MatrixSimulation,
        tags=_TAGS, summary="What a cell would have made of the renewals that failed in the last day. Changes nothing.",
    ),
)  # fmt: skip
