"""A dry run: what a run with this input would do, as far as that can be known before anything is done."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.core.expression import ExpressionFailed
from holdfast.core.run_turn import kind_of
from holdfast.core.workflow import SwitchStep
from holdfast.core.workflow_graph import Graph, Node


class Prospect(StrEnum):
    RUNS = "runs"
    SKIPPED = "skipped"
    DEPENDS = "depends"
    """On what other steps will give."""
    FAILS = "fails"
    """An expression in it has no value for this input."""


class PlannedStep(NamedTuple):
    id: str
    kind: str
    prospect: Prospect
    why: str = ""
    case: str | None = None
    """Of a condition or a switch: which one it would take, if that is known; empty: none of them."""
    items: int | None = None
    """Of a for_each: how many, if that is known."""


def plan(graph: Graph, run_input: Any) -> list[PlannedStep]:
    """In an order in which the steps could run. `run_input` is as `Graph.bind_input` returned it."""
    planner = _Planner(graph, run_input)
    return [planner.look_at(step_id) for step_id in graph.order]


class _Planner:
    def __init__(self, graph: Graph, run_input: Any) -> None:
        self._graph = graph
        self._planned: dict[str, PlannedStep] = {}
        self._variables: dict[str, Any] = {"input": run_input, "steps": {}}
        """`run` is not in it: there is none."""

    def look_at(self, step_id: str) -> PlannedStep:
        node = self._graph.nodes[step_id]
        try:
            planned = self._judge(step_id, node)
        except ExpressionFailed as error:
            planned = PlannedStep(step_id, kind_of(node), Prospect.FAILS, str(error))
        self._planned[step_id] = planned
        if planned.prospect is Prospect.SKIPPED:
            self._learn(step_id, "skipped", None)
        return planned

    def _judge(self, step_id: str, node: Node) -> PlannedStep:
        kind = kind_of(node)
        arrives = self._arrives(node)
        if arrives is False:
            return PlannedStep(step_id, kind, Prospect.SKIPPED, "nothing that it depends on would run")
        known = self._knows(node)
        if node.when is not None and known and node.when.evaluate(self._variables) is False:
            return PlannedStep(step_id, kind, Prospect.SKIPPED, f"when: {node.when.text}")
        case, items = self._outcome(step_id, node) if known else (None, None)
        if arrives is None:
            return PlannedStep(step_id, kind, Prospect.DEPENDS, "on which way is taken before it", case, items)
        if node.when is not None and not known:
            return PlannedStep(step_id, kind, Prospect.DEPENDS, f"when: {node.when.text}", case, items)
        return PlannedStep(step_id, kind, Prospect.RUNS, "", case, items)

    def _arrives(self, node: Node) -> bool | None:
        """Would a run come to the step at all? None: that cannot be known."""
        ways: list[bool | None] = []
        for edge in node.waits_for:
            before = self._planned[edge.step]
            missed = edge.case and before.case is not None and edge.case != before.case
            if before.prospect is Prospect.SKIPPED or missed:
                ways.append(False)
            elif before.prospect is Prospect.DEPENDS or (edge.case and before.case is None):
                ways.append(None)
            else:
                ways.append(True)
        if not ways or True in ways:
            return True
        return None if None in ways else False

    def _knows(self, node: Node) -> bool:
        """Whether all that the expressions of the step ask for is known."""
        return node.reads <= set(self._variables["steps"]) and not any(
            "run" in expression.reads for expression in (*node.formulas.values(), node.when) if expression
        )

    def _outcome(self, step_id: str, node: Node) -> tuple[str | None, int | None]:
        match kind_of(node):
            case "condition":
                value = node.formulas["test"].test(self._variables)
                self._learn(step_id, "succeeded", value)
                return str(value).lower(), None
            case "switch":
                assert isinstance(node.spec, SwitchStep)
                case = next(
                    (case for case, test in node.formulas.items() if test.test(self._variables)), node.spec.default
                )
                self._learn(step_id, "succeeded", case or None)
                return case, None
            case "transform" if node.template is not None and "run" not in node.template.names:
                self._learn(step_id, "succeeded", node.template.fill(self._variables)["value"])
            case "for_each":
                items = node.formulas["items"].evaluate(self._variables)
                if not isinstance(items, list):
                    raise ExpressionFailed("items must be a list, and are none")
                return None, len(items)
        return None, None

    def _learn(self, step_id: str, state: str, output: Any) -> None:
        self._variables["steps"][step_id] = {"output": output, "state": state, "error": None}
