"""JSON Schemas for what jobs and runs are given: validation, defaults, and the digest of a value.

A schema comes with its definition and points only into itself: to look at it never asks another
machine. Patterns are matched in linear time. An error names the path and what was expected, never
the value: payloads stay out of messages and logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from holdfast.core.pattern_weight import texts_in, weigh_pattern
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from jsonschema_rs import Validator

BYTES_MAX = 100_000
DEFAULTS_NESTING_MAX = 32
EXPANDED_MAX = 10_000
"""Parts of a schema in which every `$ref` stands for what it points to: as many may be looked at for one value. A
few lines that point to each other several times each would keep the plane busy for ever."""
CHAIN_MAX = 200
"""Parts within each other, likewise."""
PATTERN_SIZES = (1 << 16, 1 << 18, 1 << 20)
"""What a pattern may take in memory, as classes: it counts as the smallest that it fits, and must fit the last. One of a dozen
letters may take megabytes, and as many milliseconds for each of which nothing else happens in the process: `\\p{L}{100}`."""
PATTERNS_SIZE_MAX = 16 << 20
"""All of a schema's together."""
MATCHING_MAX = 50_000_000
"""Letters of a text times places of a pattern: about a second, if all must be tried at each."""
ERRORS_SHOWN = 3
EXACT_BELOW = 2.0**53
"""Below it a whole number is one and the same as an integer and as a float."""

_SHORTER = "say how long a text is with maxLength, not with {1,100}"
TOO_MANY_PATTERNS = f"its patterns are too large, all together; {_SHORTER}"
_POINTERS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_IDS = ("$id", "id")


class Schema:
    """One compiled schema."""

    __slots__ = ("_document", "_has_defaults", "_places", "_validator")

    def __init__(self, document: Any, validator: Validator, *, places: int) -> None:
        """`places` of its largest pattern."""
        self._places = places
        self._document = document
        self._validator = validator
        self._has_defaults = any("default" in part for part in _parts(document))

    def __str__(self) -> str:
        return f"sha256:{digest(self._document)[:16]}"

    def bind(self, value: Any) -> Any:
        """The value with the defaults of what it leaves out; itself, if there are none. Raises `Invalid`.

        Defaults are those of properties, however deep, also in the items of lists and behind `allOf` and
        `$ref`; not those of alternatives (`anyOf`, `oneOf`, `if`), where none is the one that counts.
        """
        bound = self._filled(self._document, value, 0) if self._has_defaults else value
        if self._places and max(map(len, texts_in(bound)), default=0) * self._places > MATCHING_MAX:
            raise Invalid(f"a text in it is too long for the patterns of the schema; in these, {_SHORTER}")
        if not self._validator.is_valid(bound):
            raise Invalid(self._explain(bound))
        return bound

    def _explain(self, value: Any) -> str:
        errors = list(self._validator.iter_errors(value))
        told = [f"{_path(error.instance_path)}: {error.message}" for error in errors[:ERRORS_SHOWN]]
        if len(errors) > ERRORS_SHOWN:
            told.append(f"and {len(errors) - ERRORS_SHOWN} more")
        return "; ".join(told)

    def _filled(self, schema: Any, value: Any, depth: int) -> Any:
        if not isinstance(schema, dict):
            return value
        if depth > DEFAULTS_NESTING_MAX:
            raise Invalid(f"defaults within defaults, more than {DEFAULTS_NESTING_MAX} deep")
        if isinstance(pointer := schema.get("$ref"), str):
            value = self._filled(_resolve(self._document, pointer), value, depth + 1)
        for part in _list(schema.get("allOf")):
            value = self._filled(part, value, depth + 1)
        if isinstance(value, dict) and isinstance(properties := schema.get("properties"), dict):
            value = self._filled_object(properties, value, depth)
        elif isinstance(value, list) and isinstance(items := schema.get("items"), dict):
            value = [self._filled(items, one, depth + 1) for one in value]
        return value

    def _filled_object(self, properties: dict[str, Any], value: dict[str, Any], depth: int) -> dict[str, Any]:
        filled = dict(value)
        for name, schema in properties.items():
            if name not in filled and isinstance(schema, dict) and "default" in schema:
                filled[name] = schema["default"]
            if name in filled:
                filled[name] = self._filled(schema, filled[name], depth + 1)
        return filled


def compile_schema(document: Any, *, trusted: bool = False) -> Schema:
    """Raises `Invalid`. One that whoever runs the plane has written is `trusted` to have no pattern that is held against a
    long text for a minute: where others write them, texts that could be are refused, whatever they are."""
    if not isinstance(document, dict | bool):
        raise Invalid("a schema is an object, or true or false")
    if len(msgspec.json.encode(document)) > BYTES_MAX:
        raise Invalid(f"a schema has at most {BYTES_MAX} bytes")
    for part in _parts(document):
        for word in _POINTERS:
            if isinstance(pointer := part.get(word), str) and not pointer.startswith("#"):
                raise Invalid(f"{word} points outside of the schema; it may only point into it: #/$defs/…")
    _check_expanded(document)
    if size_of_patterns(document) > PATTERNS_SIZE_MAX:
        raise Invalid(TOO_MANY_PATTERNS)
    from jsonschema_rs import RegexOptions, ValidationError, validator_for  # noqa: PLC0415  (who has none pays nothing)

    try:
        validator = validator_for(document, mask="this", pattern_options=RegexOptions(size_limit=PATTERN_SIZES[-1]))
    except ValidationError as error:
        hint = f", or one that is too large: {_SHORTER}" if "regex" in error.message else ""
        raise Invalid(f"not a JSON Schema: {_path(error.instance_path)}: {error.message}{hint}") from None
    places = 0 if trusted else max((weigh_pattern(one).places for one in _patterns(document)), default=0)
    schema = Schema(document, validator, places=places)
    # A schema whose defaults contain themselves is found now, not with the first job.
    schema._filled(document, {}, 0)  # noqa: SLF001
    return schema


def size_of_patterns(document: Any) -> int:
    """What the patterns of a schema take, near enough; or more than `PATTERNS_SIZE_MAX`, without a look at the rest."""
    size = 0
    for pattern in _patterns(document):
        size += next((one for one in PATTERN_SIZES if _fits(pattern, one)), PATTERN_SIZES[-1])
        if size > PATTERNS_SIZE_MAX:
            break
    return size


def _patterns(document: Any) -> Iterator[str]:
    seen: set[str] = set()
    for part in _parts(document):
        named = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
            if isinstance(pattern, str) and pattern not in seen:
                seen.add(pattern)
                yield pattern


def _fits(pattern: str, size: int) -> bool:
    from jsonschema_rs import RegexOptions, ValidationError, validator_for  # noqa: PLC0415  (as above)

    try:
        validator_for({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
    except ValidationError:
        return False
    return True


def digest(value: Any) -> str:
    """sha256 of the value's canonical JSON: keys sorted, no space."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def request_digest(value: Any) -> str:
    """As `digest`, and 1.0 is 1: JSON has one kind of numbers, and two programs may well write the same request differently."""
    return digest(_with_one_form_of_numbers(value))


def _with_one_form_of_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_one_form_of_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_one_form_of_numbers(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW
    return int(value) if is_whole else value


def _resolve(document: Any, pointer: str) -> Any:
    """What a JSON pointer means. One by anchor is left to the validator: it fills in nothing."""
    found = document if pointer == "#" or pointer.startswith("#/") else None
    for name in unquote(pointer).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isascii() and key.isdigit() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def _check_expanded(document: Any) -> None:
    """Raises `Invalid` for a schema that is short to write and endless to read."""
    anchored = _anchored(document)
    known: dict[int, int] = {}

    def weigh(part: Any, depth: int, own: Any) -> int:
        """`own` is the part around it that has a name: pointers may mean it, or the whole."""
        if depth > CHAIN_MAX:
            raise Invalid(f"a schema has at most {CHAIN_MAX} parts within each other")
        if isinstance(part, list):
            return sum(weigh(one, depth + 1, own) for one in part)
        if not isinstance(part, dict):
            return 0
        if id(part) not in known:
            known[id(part)] = 1  # a part within itself goes as deep as the value does
            if any(isinstance(part.get(word), str) for word in _IDS):
                own = part
            pointers = [part[word] for word in _POINTERS if isinstance(part.get(word), str)]
            meant = [
                one for at in pointers for one in (_resolve(document, at), _resolve(own, at), *anchored.get(at, ()))
            ]
            targets = {id(one): one for one in meant}.values()
            known[id(part)] = 1 + sum(weigh(one, depth + 1, own) for one in (*part.values(), *targets))
        return known[id(part)]

    if weigh(document, 0, document) > EXPANDED_MAX:
        raise Invalid(f"a schema has at most {EXPANDED_MAX} parts, where each $ref stands for what it points to")


def _anchored(document: Any) -> dict[str, list[Any]]:
    """By pointer: the parts that have this name."""
    anchored: dict[str, list[Any]] = {}
    for part in _parts(document):
        for word in _ANCHORS:
            if isinstance(part.get(word), str):
                anchored.setdefault(f"#{part[word]}", []).append(part)
    return anchored


def _parts(document: Any) -> Iterator[dict[str, Any]]:
    """Every object in it. Some are no schemas (an enum's members): harmless here."""
    rest = [document]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            yield part
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _path(parts: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
