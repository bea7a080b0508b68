"""Templates: JSON with `${ … }` in its texts, each an expression, filled with the data of one run or one job."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core.expression import Expression, ExpressionFailed, check_json, compile_expression
from holdfast.core.expression_text import LITERAL
from holdfast.errors import Invalid

FILLED_BYTES_MAX = 4 << 20
"""Of all that one template is filled with: what is named often counts as often, or one large value would become many."""

_PIECE = re.compile(r"\$\$\{|\$\{")
_INSIDE = re.compile(rf"{LITERAL}|[{{}}]", re.VERBOSE | re.DOTALL)


class FilledTooLarge(ExpressionFailed):
    """A template takes more than `FILLED_BYTES_MAX` of the data."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {FILLED_BYTES_MAX} bytes of the data; pass a reference to what is large")


class _Filling:
    """Variables for one template, and how many bytes it may still take of them."""

    __slots__ = ("_left", "_sizes", "variables")

    def __init__(self, variables: Mapping[str, Any], bytes_max: int) -> None:
        self.variables = variables
        self._left = bytes_max
        self._sizes: dict[int, tuple[Any, int]] = {}

    def value(self, expression: Expression) -> Any:
        value = expression.evaluate(self.variables)
        check_json(value)
        self._take(self._size(value))
        return value

    def text(self, expression: Expression) -> str:
        return as_text(self.value(expression))

    def _size(self, value: Any) -> int:
        """Of its JSON. What is named again is not written again to know."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, dict | list):
            return 8
        known = self._sizes.get(id(value))
        if known is None:
            # With the value itself: another one may get its address otherwise.
            known = self._sizes[id(value)] = (value, len(msgspec.json.encode(value)))
        return known[1]

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise FilledTooLarge


Filler = Callable[[_Filling], Any]


class Template:
    """A JSON value with `${ … }` in its texts, compiled. A text that is nothing but one expression
    becomes the expression's value, of whatever type; inside other text a value is written as JSON, a
    text as it is. `$${` is a plain `${`."""

    __slots__ = ("_fill", "expressions")

    def __init__(self, fill: Filler, expressions: tuple[Expression, ...]) -> None:
        self._fill = fill
        self.expressions = expressions

    @property
    def names(self) -> frozenset[str]:
        """The variables that its expressions read."""
        return frozenset(name for expression in self.expressions for name in expression.names)

    def fill(self, variables: Mapping[str, Any]) -> Any:
        """Raises `ExpressionFailed`."""
        return self._fill(_Filling(variables, FILLED_BYTES_MAX))


def compile_template(template: Any, *, names: Collection[str] | None = None) -> Template:
    """Raises `Invalid`, with the path to the text that is wrong."""
    found: list[Expression] = []
    return Template(_filler(template, "$", names, found), tuple(found))


def _filler(template: Any, path: str, names: Collection[str] | None, found: list[Expression]) -> Filler:
    match template:
        case str():
            try:
                return _text_filler(template, names, found)
            except Invalid as error:
                raise Invalid(f"{path}: {error}") from None
        case dict():
            members = {key: _filler(value, f"{path}.{key}", names, found) for key, value in template.items()}
            return lambda filling: {key: filler(filling) for key, filler in members.items()}
        case list():
            items = [_filler(value, f"{path}[{at}]", names, found) for at, value in enumerate(template)]
            return lambda filling: [filler(filling) for filler in items]
        case _:
            return lambda _: template


def _text_filler(text: str, names: Collection[str] | None, found: list[Expression]) -> Filler:
    pieces = list(_pieces(text))
    compiled: list[str | Expression] = [
        piece.text if piece.plain else _compiled(piece.text, None if names is None else frozenset(names))
        for piece in pieces
    ]
    found += [piece for piece in compiled if isinstance(piece, Expression)]
    if len(compiled) == 1 and isinstance(compiled[0], Expression):
        whole = compiled[0]
        return lambda filling: filling.value(whole)
    return lambda filling: "".join(piece if isinstance(piece, str) else filling.text(piece) for piece in compiled)


@functools.lru_cache(maxsize=1024)
def _compiled(text: str, names: frozenset[str] | None) -> Expression:
    return compile_expression(text, names=names)


class _Piece(NamedTuple):
    text: str
    plain: bool


def _pieces(text: str) -> Iterator[_Piece]:
    at, plain = 0, ""
    while found := _PIECE.search(text, at):
        plain += text[at : found.start()]
        if found[0] == "$${":
            plain, at = plain + "${", found.end()
            continue
        end = _closing(text, found.end())
        if plain:
            yield _Piece(plain, plain=True)
        yield _Piece(text[found.end() : end], plain=False)
        at, plain = end + 1, ""
    if plain + text[at:] or not text:
        yield _Piece(plain + text[at:], plain=True)


def _closing(text: str, begin: int) -> int:
    depth = 0
    for found in _INSIDE.finditer(text, begin):
        depth += (found[0] == "{") - (found[0] == "}")
        if depth < 0:
            return found.start()
    raise Invalid(f"column {begin - 1}: ${{ without its }}; a plain ${{ is written $${{")


def as_text(value: Any) -> str:
    """As it stands inside of other text: JSON, a text as it is."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
