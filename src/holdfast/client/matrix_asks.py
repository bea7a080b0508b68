"""What can be asked about the policy matrix, as values; see `asks`."""

from __future__ import annotations

from holdfast.api.matrix import CellView, MatrixRules, MatrixSimulation, MatrixView, ResetCell, SetCell, SimulateCell
from holdfast.client.asks import Ask, get_ask, post_ask, read_as, said_by


def matrix() -> Ask[MatrixView]:
    """What holders of locks do when renewals fail, as the plane that answers goes by it."""
    return get_ask("/v1/matrix", read_as(MatrixView))


def set_matrix(
    cell: str, rules: MatrixRules, *, reason: str, for_s: float | None = None, by: str = ""
) -> Ask[CellView]:
    """Change it for `risk=RISK` or `namespace=LOCK-CLASS`, on every replica within 5 s."""
    body = SetCell(cell=cell, rules=rules, reason=reason, for_s=for_s)
    return post_ask("/v1/matrix:set", read_as(CellView), body, headers=said_by(by))


def reset_matrix(cell: str, *, reason: str, by: str = "") -> Ask[CellView]:
    """Take a cell back before its time."""
    body = ResetCell(cell=cell, reason=reason)
    return post_ask("/v1/matrix:reset", read_as(CellView), body, headers=said_by(by))


def simulate_matrix(cell: str, rules: MatrixRules) -> Ask[MatrixSimulation]:
    """What it would have made of the renewals that failed in the last day. Changes nothing."""
    body = SimulateCell(cell=cell, rules=rules)
    return post_ask("/v1/matrix:simulate", read_as(MatrixSimulation), body, repeatable=True)
