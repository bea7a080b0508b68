"""Expressions: what rules and workflows ask of data, in CEL (the Common Expression Language).

CEL has no loops and no side effects, so an expression ends; the bounds here make it end *soon*: on
its length, its nesting and its operators when it is compiled (the parser is recursive, and a thread's
stack is finite), and on the data that it reads when it is evaluated.

Handing data to the interpreter costs 3 µs a value, evaluating costs less than one: so an expression is
given only the members that it names, and several expressions about the same data share one handing over
(`Reading`).

What goes wrong is told without a value of the data: expressions read payloads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.expression_patterns import MATCHING_US_MAX, Patterns, Texts, patterns_of
from holdfast.core.expression_text import (
    Cost,
    Reference,
    blanked,
    check_bounds,
    check_names,
    cost_of,
    members_of,
    syntax_error,
)
from holdfast.core.pattern_weight import texts_in
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from cel import Context, Program

VALUES_MAX = 10_000
"""That an expression may be given; about 30 ms."""
STEPS_MAX = 100_000
"""Of macros, as many as could be for the data given; likewise."""
COPIES_MAX = 10_000_000
"""Of values, that it may make on its way, as many as could be for the data given; up to a second."""
SMALL = 50
"""Values, of which an expression that makes no lists cannot make much: that need not be reckoned for each job."""
NESTED_MAX = 200
"""Levels of a value that a template takes. Callers' data has fewer, but each step of a run may put its own around them,
and what is written as JSON is written level by level on a stack that ends."""

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Reads = Mapping[str, frozenset[str] | None]
"""By variable: the members that are read of it; None: all of it."""


class ExpressionFailed(Exception):
    """An expression had no value for the data given. The message contains none of it."""


class Expression:
    """One compiled expression. Keeps nothing between evaluations."""

    __slots__ = ("_path", "cost", "macro_nesting", "patterns", "program", "reads", "text")

    def __init__(
        self,
        text: str,
        program: Program,
        reads: Reads,
        macro_nesting: int,
        *,
        cost: Cost | None,
        patterns: Patterns | None,
    ) -> None:
        self.patterns = patterns
        self.text = text
        self.program = program
        self.reads = reads
        self.macro_nesting = macro_nesting
        self.cost = cost
        self._path = text.split(".") if reads and _PATH.fullmatch(text := text.strip()) else None

    @property
    def names(self) -> frozenset[str]:
        """The variables it reads."""
        return frozenset(self.reads)

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """Its value. Raises `ExpressionFailed`."""
        if self._path is not None:
            return _looked_up(self._path, variables)
        return Reading((self,)).over(variables).value(self)

    def evaluate_json(self, variables: Mapping[str, Any]) -> Any:
        """As `evaluate`, of what must be JSON. A path hands on what is JSON already."""
        value = self.evaluate(variables)
        if self._path is None:
            check_json(value)
        return value

    def test(self, variables: Mapping[str, Any]) -> bool:
        """As `evaluate`, of what must be true or false."""
        value = self.evaluate(variables)
        if not isinstance(value, bool):
            raise ExpressionFailed("it must be true or false, and is neither")
        return value


class Reading:
    """What some expressions read, together: made once for them."""

    __slots__ = ("_context", "_reads", "names")

    def __init__(self, expressions: Iterable[Expression]) -> None:
        from cel import Context  # noqa: PLC0415  (as in compile_expression)

        self._context = Context
        self._reads: dict[str, frozenset[str] | None] = {}
        for name, members in (read for expression in expressions for read in expression.reads.items()):
            known = self._reads.get(name, frozenset())
            self._reads[name] = None if known is None or members is None else known | members
        self.names = frozenset(self._reads)

    def over(self, variables: Mapping[str, Any]) -> Facts:
        """The data, ready for each of the expressions. Raises `ExpressionFailed` if it is too much."""
        read = {name: _only(variables[name], members) for name, members in self._reads.items() if name in variables}
        weight = _weigh(read)
        if weight > VALUES_MAX:
            raise ExpressionFailed(f"it reads more than {VALUES_MAX} values")
        try:
            return Facts(self._context(read), read, weight)
        except Exception:  # noqa: BLE001  (as in `Facts.value`: what it says quotes the data)
            # Of what JSON can say, there is no value but such a number that the interpreter does not know.
            raise ExpressionFailed(_reason(OverflowError())) from None


class Facts:
    """Data that was handed to the interpreter."""

    __slots__ = ("_context", "_longest", "_read", "_texts", "_weight", "_weights")

    def __init__(self, context: Context, read: Mapping[str, Any], weight: int) -> None:
        self._context = context
        self._read = read
        self._weight = weight
        self._longest: int | None = None
        self._texts: Texts | None = None
        self._weights: dict[Reference, int] = {}

    def value(self, expression: Expression) -> Any:
        """Raises `ExpressionFailed`."""
        if expression.macro_nesting and self._weight**expression.macro_nesting > STEPS_MAX:
            raise ExpressionFailed(
                f"the data is too large for it: {self._weight} values, {expression.macro_nesting} macros within each other"
            )
        cost = expression.cost
        if cost is not None and (cost.grows or self._weight > SMALL) and self._copies(cost) > COPIES_MAX:
            raise ExpressionFailed(f"the data is too large for it: it could come to more than {COPIES_MAX} values")
        patterns = expression.patterns
        if patterns is not None and patterns.us(self._weight, self._measured()) > MATCHING_US_MAX:
            raise ExpressionFailed(
                "the data is too large for its patterns: hold shorter ones against fewer or shorter texts"
            )
        try:
            return expression.program.execute(self._context)
        except Exception as error:  # noqa: BLE001  (whatever the interpreter raises, it may quote the data)
            raise ExpressionFailed(_reason(error)) from None

    def _measured(self) -> Texts:
        if self._texts is None:
            self._texts = _texts(self._read)
        return self._texts

    def _copies(self, cost: Cost) -> int:
        if self._longest is None and cost.macros:
            self._longest = _longest(self._read)
        return cost.copies(self._weigh, longest=self._longest or 0)

    def _weigh(self, reference: Reference) -> int:
        """What a macro calls its own is a part of the data, and no more than all of it."""
        if reference.name not in self._read:
            return self._weight
        if reference not in self._weights:
            value = self._read[reference.name]
            member = value.get(reference.member) if isinstance(value, Mapping) and reference.member else value
            self._weights[reference] = _weigh(member)
        return self._weights[reference]


def _looked_up(path: list[str], variables: Mapping[str, Any]) -> Any:
    """What `a.b.c` means, without the interpreter: however large it is, it costs nothing."""
    value: Any = variables
    for name in path:
        if not isinstance(value, Mapping):
            raise ExpressionFailed(_reason(TypeError()))
        if name not in value:
            raise ExpressionFailed(_reason(KeyError()))
        value = value[name]
    return value


def _only(value: Any, members: frozenset[str] | None) -> Any:
    if members is None or not isinstance(value, dict):
        return value
    return {name: value[name] for name in members if name in value}


def compile_expression(text: str, *, names: Collection[str] | None = None) -> Expression:
    """Raises `Invalid` with line and column. `names` are the variables that there will be; None: any."""
    bare = blanked(text)
    macros = check_bounds(text, bare)
    from cel import compile as compile_cel  # noqa: PLC0415  (a third of a second, and most processes never ask)

    try:
        program = compile_cel(text)
    except ValueError as error:
        raise Invalid(syntax_error(str(error))) from None
    read = frozenset(program.variables()) - {macro.variable for macro in macros}
    check_names(text, bare, functions=program.functions(), read=read, macros=macros, names=names)
    nested = max((macro.nesting for macro in macros), default=0)
    reads = {name: members_of(bare, name) for name in read}
    patterns = patterns_of(text, bare, read=_read_literal)
    if patterns is not None and patterns.us_once > MATCHING_US_MAX:
        raise Invalid(
            "its patterns take too long to compile: write shorter ones, without {100} or \\w where others will do"
        )
    return Expression(text, program, reads, nested, cost=cost_of(text, bare, macros), patterns=patterns)


def _read_literal(text: str) -> str:
    """What the text of a literal means; bytes are no pattern."""
    from cel import Context  # noqa: PLC0415  (as above)
    from cel import compile as compile_cel  # noqa: PLC0415

    value = compile_cel(text).execute(Context({}))
    return value if isinstance(value, str) else ""


def _weigh(value: Any) -> int:
    """How many values there are; long texts count as many. Stops when it is too many."""
    weight, rest = 0, [value]
    while rest and weight <= VALUES_MAX:
        one = rest.pop()
        weight += 1
        if isinstance(one, str):
            weight += len(one) // 256
        elif isinstance(one, Mapping):
            rest.extend(one.values())
        elif isinstance(one, list | tuple):
            rest.extend(one)
    return weight


def _texts(value: Any) -> Texts:
    letters, longest = 0, 0
    for text in texts_in(value):
        letters += len(text)
        longest = max(longest, len(text))
    return Texts(letters, longest)


def _longest(value: Any) -> int:
    """Of all lists and objects in it, the length of the longest."""
    longest, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, Mapping | list | tuple):
            longest = max(longest, len(one))
            rest.extend(one.values() if isinstance(one, Mapping) else one)
    return longest


def _reason(error: Exception) -> str:
    match error:
        case KeyError():
            return "it reads a field that is not there; ask has(…) first"
        case IndexError():
            return "it reads beyond the end of a list"
        case ZeroDivisionError():
            return "it divides by zero"
        case OverflowError():
            return "a number in it is too large"
        case TypeError():
            return "the types of its values do not go together; convert with int(…), double(…) or string(…)"
        case _:
            return "it has no value for this data"


def check_json(value: Any) -> None:
    """Raises `ExpressionFailed`. What would be written as something else, or as null, is none: a time, bytes, NaN."""
    if not _is_json(value, NESTED_MAX):
        raise ExpressionFailed("its value is none of JSON; convert it with string(…) or int(…)")


def _is_json(value: Any, levels: int) -> bool:
    """Raises `ExpressionFailed` if it has more than so many levels."""
    match value:
        case None | bool() | str() | int():
            return True
        case float():
            return value - value == 0  # neither infinite nor no number
        case list() | dict() if not levels:
            raise ExpressionFailed(f"its value is nested deeper than {NESTED_MAX}")
        case list():
            return all(_is_json(one, levels - 1) for one in value)
        case dict():
            return all(isinstance(key, str) and _is_json(one, levels - 1) for key, one in value.items())
        case _:
            return False
