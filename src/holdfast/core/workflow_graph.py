"""A definition, compiled: who waits for whom, and every expression ready to be asked.

Compiling is checking: whatever is wrong with a definition, but for its shape, is found here, with
the line. An engine keeps one `Graph` for each revision, and asks no definition twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from holdfast.core.document import Path, Refused
from holdfast.core.expression import Expression, compile_expression
from holdfast.core.job import UNDO
from holdfast.core.schema import Schema, compile_schema
from holdfast.core.template import Template, compile_template
from holdfast.core.workflow import (
    ApprovalStep,
    Compensation,
    ConditionStep,
    Definition,
    DelayStep,
    ForEachStep,
    JobStep,
    NotifyStep,
    ParallelStep,
    Retry,
    StepSpec,
    SwitchStep,
    TransformStep,
    WorkflowStep,
)
from holdfast.errors import Invalid

VARIABLES = frozenset({"input", "steps", "run"})

Spec = StepSpec | Compensation


class Edge(NamedTuple):
    """The other end of a dependency, and the case that it hangs on; empty: any."""

    step: str
    case: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    spec: Spec
    waits_for: tuple[Edge, ...] = ()
    followers: list[Edge] = field(default_factory=list)
    """Whoever waits for it."""
    when: Expression | None = None
    formulas: dict[str, Expression] = field(default_factory=dict)
    """By the name of their field; of a switch by case."""
    template: Template | None = None
    """Of all fields that are templates, as one object."""
    reads: frozenset[str] = frozenset()
    """The steps that `when`, formulas and template ask for."""
    parts: dict[str, Node] = field(default_factory=dict)
    """Branches by name; the body of a for_each under the empty one."""
    undo: Node | None = None

    @property
    def retry(self) -> Retry | None:
        return self.spec.retry if isinstance(self.spec, JobStep | WorkflowStep | NotifyStep | Compensation) else None

    @property
    def continues(self) -> bool:
        """Its failure is not the end of the run."""
        return not isinstance(self.spec, Compensation) and self.spec.on_error == "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    definition: Definition
    nodes: dict[str, Node]
    """By id, in the order of the definition."""
    order: tuple[str, ...]
    """Ids such that each comes after all that it waits for."""
    output: Template
    output_reads: frozenset[str]
    input_schema: Schema | None
    output_schema: Schema | None
    has_runs: bool
    """Whether a run of it may start others."""

    @classmethod
    def of(cls, definition: Definition, line_of: Callable[[Path], int] = lambda path: 0) -> Graph:
        """Raises `Refused`."""
        return _Compiler(definition, line_of).compile()

    def node(self, name: str) -> Node:
        """Of a step by the name it has in a run: `id`, `id[item]`, or either with `~undo`."""
        if name.endswith(UNDO):
            undo = self.node(name.removesuffix(UNDO)).undo
            assert undo is not None
            return undo
        if name.endswith("]"):
            owner, _, label = name[:-1].partition("[")
            parts = self.nodes[owner].parts
            return parts.get(label) or parts[""]
        return self.nodes[name]

    def bind_input(self, value: Any) -> Any:
        """The input with the defaults of what it leaves out. Raises `Invalid`."""
        if self.input_schema is None:
            return value
        try:
            return self.input_schema.bind(value)
        except Invalid as error:
            raise Invalid(f"the input does not fit the schema of workflow {self.definition.name}: {error}") from None

    def after(self, start: str, *, limit: int | None = None) -> frozenset[str]:
        """The step and all that, directly or not, wait for it; the nearest, if there are more than the limit."""
        found, rest = {start}, deque([start])
        while rest and (limit is None or len(found) < limit):
            for follower in self.nodes[rest.popleft()].followers:
                if follower.step not in found:
                    found.add(follower.step)
                    rest.append(follower.step)
        return frozenset(found)


def owner_of(name: str) -> str:
    """The step of the definition that a step of a run belongs to."""
    return name.removesuffix(UNDO).partition("[")[0]


class _Compiler:
    def __init__(self, definition: Definition, line_of: Callable[[Path], int]) -> None:
        self._definition = definition
        self._line_of = line_of
        self._place = {step.id: place for place, step in enumerate(definition.steps)}
        self._before: dict[str, int] = {}
        """Of each step, as bits: all that, directly or not, it waits for."""

    def compile(self) -> Graph:
        definition = self._definition
        waits_for = {step.id: self._edges(step, ("steps", at)) for at, step in enumerate(definition.steps)}
        order = self._sort(waits_for)
        for step_id in order:
            bits = 0
            for edge in waits_for[step_id]:
                bits |= 1 << self._place[edge.step] | self._before[edge.step]
            self._before[step_id] = bits
        nodes = {
            step.id: self._node(step, ("steps", at), step.id, waits_for[step.id])
            for at, step in enumerate(definition.steps)
        }
        for step_id, edges in waits_for.items():
            for edge in edges:
                nodes[edge.step].followers.append(Edge(step_id, edge.case))
        output, output_reads = self._template(definition.output, ("output",), VARIABLES, None)
        parts = [part for node in nodes.values() for part in (node, *node.parts.values())]
        return Graph(
            definition=definition,
            nodes=nodes,
            order=tuple(order),
            output=output,
            output_reads=output_reads,
            input_schema=self._schema("input_schema"),
            output_schema=self._schema("output_schema"),
            has_runs=any(isinstance(part.spec, WorkflowStep) for part in parts),
        )

    # -- dependencies ----------------------------------------------------------------------------------

    def _edges(self, step: StepSpec, path: Path) -> tuple[Edge, ...]:
        edges = []
        for at, text in enumerate(step.depends_on):
            here = (*path, "depends_on", at)
            name, _, case = text.partition("=")
            if name not in self._place:
                self._refuse(f"step {step.id} depends on {name!r}, and there is no such step", here)
            edge = Edge(name, case)
            if edge in edges:
                self._refuse(f"step {step.id} depends on {text} twice", here)
            if "=" in text:
                self._check_case(edge, here)
            edges.append(edge)
        return tuple(edges)

    def _check_case(self, edge: Edge, path: Path) -> None:
        spec = self._definition.steps[self._place[edge.step]]
        match spec:
            case ConditionStep():
                cases = ["true", "false"]
            case SwitchStep():
                cases = [*spec.cases, *([spec.default] if spec.default else [])]
            case _:
                self._refuse(f"step {edge.step} has no cases: only a condition and a switch have", path)
        if edge.case not in cases:
            self._refuse(f"step {edge.step} has no case {edge.case!r} (it has: {', '.join(cases)})", path)

    def _sort(self, waits_for: dict[str, tuple[Edge, ...]]) -> list[str]:
        missing = {step: len({edge.step for edge in edges}) for step, edges in waits_for.items()}
        followers: dict[str, set[str]] = {step: set() for step in waits_for}
        for step, edges in waits_for.items():
            for edge in edges:
                followers[edge.step].add(step)
        order = [step for step, count in missing.items() if count == 0]
        for step in order:  # grows while it is walked
            for follower in sorted(followers[step], key=self._place.__getitem__):
                missing[follower] -= 1
                if missing[follower] == 0:
                    order.append(follower)
        if len(order) < len(waits_for):
            self._refuse_cycle(waits_for, set(order))
        return order

    def _refuse_cycle(self, waits_for: dict[str, tuple[Edge, ...]], sound: set[str]) -> None:
        """Whoever is not sound waits for somebody who is not sound either: following them leads round."""
        step = next(step for step in waits_for if step not in sound)
        walk: list[str] = []
        while step not in walk:
            walk.append(step)
            step = next(edge.step for edge in waits_for[step] if edge.step not in sound)
        cycle = [*walk[walk.index(step) :], step]
        self._refuse(
            f"these steps wait for each other: {' → '.join(cycle)}", ("steps", self._place[cycle[0]], "depends_on")
        )

    # -- one step --------------------------------------------------------------------------------------

    def _node(
        self,
        spec: Spec,
        path: Path,
        owner: str,
        waits_for: tuple[Edge, ...] = (),
        variables: frozenset[str] = VARIABLES,
    ) -> Node:
        when, reads = None, frozenset[str]()
        if not isinstance(spec, Compensation) and spec.when:
            when, reads = self._formula(spec.when, (*path, "when"), variables, owner)
        formulas = {}
        for name, text, where in _formulas(spec):
            formulas[name], read = self._formula(text, (*path, *where), variables, owner)
            reads |= read
        template = None
        if fields := _templates(spec):
            template, read = self._template(fields, path, variables, owner)
            reads |= read
        return Node(
            spec=spec,
            waits_for=waits_for,
            when=when,
            formulas=formulas,
            template=template,
            reads=reads,
            parts=self._parts(spec, path, owner),
            undo=self._undo(spec, path, owner, variables),
        )

    def _parts(self, spec: Spec, path: Path, owner: str) -> dict[str, Node]:
        match spec:
            case ForEachStep():
                body = self._node(spec.step, (*path, "step"), owner, variables=VARIABLES | {"item", "index"})
                return {"": body}
            case ParallelStep():
                return {
                    name: self._node(branch, (*path, "branches", name), owner) for name, branch in spec.branches.items()
                }
            case _:
                return {}

    def _undo(self, spec: Spec, path: Path, owner: str, variables: frozenset[str]) -> Node | None:
        if isinstance(spec, JobStep | WorkflowStep | NotifyStep) and spec.compensate is not None:
            return self._node(spec.compensate, (*path, "compensate"), owner, variables=variables | {"output"})
        return None

    # -- expressions -----------------------------------------------------------------------------------

    def _formula(
        self, text: str, path: Path, variables: frozenset[str], owner: str
    ) -> tuple[Expression, frozenset[str]]:
        try:
            expression = compile_expression(text, names=variables)
        except Invalid as error:
            self._refuse(f"{path[-1]}: {error}", path)
        return expression, self._reads(expression, path, owner)

    def _template(
        self, value: Any, path: Path, variables: frozenset[str], owner: str | None
    ) -> tuple[Template, frozenset[str]]:
        reads = frozenset[str]()
        for where, text in _texts(value, path):
            try:
                expressions = compile_template(text, names=variables).expressions
            except Invalid as error:
                self._refuse(f"{where[-1]}: {str(error).removeprefix('$: ')}", where)
            for expression in expressions:
                reads |= self._reads(expression, where, owner)
        return compile_template(value, names=variables), reads

    def _reads(self, expression: Expression, path: Path, owner: str | None) -> frozenset[str]:
        """The steps it asks for: by name, so that they can be looked up before it is asked."""
        if "steps" not in expression.reads:
            return frozenset()
        read = expression.reads["steps"]
        if read is None:
            self._refuse(f"{path[-1]}: steps are read by name: steps.<id>.output", path)
        for name in sorted(read):
            if name not in self._place:
                self._refuse(f"{path[-1]}: steps.{name}: there is no such step", path)
            if owner is not None and not self._before[owner] >> self._place[name] & 1:
                self._refuse(f"{path[-1]}: steps.{name}: step {owner} does not depend on {name}", path)
        return read

    def _schema(self, name: str) -> Schema | None:
        document = getattr(self._definition, name)
        if document is None:
            return None
        try:
            return compile_schema(document)
        except Invalid as error:
            self._refuse(str(error), (name,))

    def _refuse(self, reason: str, path: Path) -> NoReturn:
        raise Refused(reason, line=self._line_of(path))


def _formulas(spec: Spec) -> Iterator[tuple[str, str, Path]]:
    """Name, text and place of each expression that is not in a template."""
    match spec:
        case ConditionStep():
            yield "test", spec.test, ("test",)
        case SwitchStep():
            for case, text in spec.cases.items():
                yield case, text, ("cases", case)
        case ForEachStep():
            yield "items", spec.items, ("items",)
        case DelayStep():
            if isinstance(spec.seconds, str):
                yield "seconds", spec.seconds, ("seconds",)
            if spec.until:
                yield "until", spec.until, ("until",)


def _templates(spec: Spec) -> dict[str, Any]:
    match spec:
        case JobStep() | Compensation():
            return {"payload": spec.payload, "labels": spec.labels, "session": spec.session}
        case ApprovalStep():
            return {"message": spec.message, "payload": spec.payload, "effect_preview": spec.effect_preview}
        case TransformStep():
            return {"value": spec.value}
        case NotifyStep():
            return {"payload": spec.payload}
        case WorkflowStep():
            return {"input": spec.input}
        case _:
            return {}


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case str():
            if "${" in value:
                yield path, value
        case dict():
            for key, member in value.items():
                yield from _texts(member, (*path, key))
        case list():
            for at, member in enumerate(value):
                yield from _texts(member, (*path, at))
