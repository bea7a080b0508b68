"""Documents that people write: YAML, of which JSON is a part, read as plain JSON values with their lines.

The text may come from anybody. So there are bounds on its size, its nodes and its nesting, and nothing
in it can stand for more than is written: no aliases, no merge keys, no tags. Words mean what YAML 1.2
says: `on`, `yes` and `1:30` are texts, and a date is one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.errors import Invalid

BYTES_MAX = 1 << 20
NODES_MAX = 200_000
NESTING_MAX = 64

Path = tuple[str | int, ...]
"""From the root: names of members and places in lists."""

_AT = re.compile(r"(.*) - at (?:`key` in )?`\$(.*)`$", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
"""How JSON escapes what is beyond sixteen bits; YAML has another way."""
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Refused(Invalid):
    """A document that cannot be taken, with the line that is to be changed."""

    def __init__(self, reason: str, *, line: int) -> None:
        super().__init__(f"line {line}: {reason}")
        self.reason = reason
        self.line = line


class Document:
    __slots__ = ("_lines", "value")

    def __init__(self, value: Any, lines: dict[Path, int]) -> None:
        self.value = value
        self._lines = lines

    def line_of(self, path: Path) -> int:
        """The line on which what is at the path begins; of a member, that of its name. For what is not
        there, the line of the nearest thing around it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]


def load_document(text: str | bytes) -> Document:
    """Raises `Refused`."""
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="replace"))
    if size > BYTES_MAX:
        raise Refused(f"a document has at most {BYTES_MAX} bytes, not {size}", line=1)
    from yaml import CSafeLoader, MarkedYAMLError, YAMLError, parse  # noqa: PLC0415  (who reads none pays nothing)

    try:
        if isinstance(text, bytes):
            text = text.decode()
        if text.lstrip()[:1] in ("{", "[", '"'):
            text = _PAIR.sub(_joined, text)
        return _Reader(parse(text, Loader=CSafeLoader)).read()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise Refused(f"not YAML: {error.problem or error.context}", line=line) from None
    except (YAMLError, UnicodeDecodeError):
        raise Refused("not text: there are characters in it that YAML does not allow", line=1) from None


def _joined(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}\\U{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:08x}"


class _Open(NamedTuple):
    """A list or an object that has not ended yet."""

    value: dict[str, Any] | list[Any]
    path: Path


class _Reader:
    """From the parser's events to a value, without recursion: the depth is the text's to choose."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._lines: dict[Path, int] = {}
        self._open: list[_Open] = []
        self._key: str | None = None
        self._nodes = 0
        self._root: Any = None

    def read(self) -> Document:
        documents = 0
        for event in self._events:
            line = event.start_mark.line + 1
            match type(event).__name__:
                case "DocumentStartEvent":
                    documents += 1
                    if documents > 1:
                        raise Refused("a second document begins here; there must be one", line=line)
                case "AliasEvent":
                    raise Refused("an alias (*) is not allowed; write out what it stands for", line=line)
                case "ScalarEvent":
                    self._take_scalar(event, line)
                case "MappingStartEvent":
                    self._begin({}, event, line)
                case "SequenceStartEvent":
                    self._begin([], event, line)
                case "MappingEndEvent" | "SequenceEndEvent":
                    self._open.pop()
        if not documents:
            raise Refused("the document is empty", line=1)
        return Document(self._root, self._lines)

    def _begin(self, value: dict[str, Any] | list[Any], event: Any, line: int) -> None:
        if self._awaits_key():
            raise Refused("the name of a member must be a text", line=line)
        self._check(event, line)
        path = self._place(value, line)
        if len(self._open) >= NESTING_MAX:
            raise Refused(f"more than {NESTING_MAX} levels within each other", line=line)
        self._open.append(_Open(value, path))

    def _take_scalar(self, event: Any, line: int) -> None:
        self._check(event, line)
        if self._awaits_key():
            self._take_key(event.value, line)
        else:
            self._place(_scalar(event.value, line) if event.implicit[0] else event.value, line)

    def _take_key(self, key: str, line: int) -> None:
        # `true:` and `1:` are names here, as they must be in JSON.
        if key == "<<":
            raise Refused("a merge key (<<) is not allowed; write out its members", line=line)
        owner = self._open[-1]
        if key in owner.value:
            first = self._lines[(*owner.path, key)]
            raise Refused(f"{key!r} is there twice; the first is on line {first}", line=line)
        self._key = key
        self._lines[(*owner.path, key)] = line

    def _place(self, value: Any, line: int) -> Path:
        """Put a value where the document is being read, and say where that is."""
        if not self._open:
            self._root = value
            self._lines[()] = line
            return ()
        owner = self._open[-1]
        if isinstance(owner.value, list):
            path: Path = (*owner.path, len(owner.value))
            owner.value.append(value)
            self._lines[path] = line
            return path
        assert self._key is not None
        path = (*owner.path, self._key)
        owner.value[self._key] = value
        self._key = None
        return path

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._key is None

    def _check(self, event: Any, line: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise Refused(f"more than {NODES_MAX} values in one document", line=line)
        if event.anchor is not None:
            raise Refused(f"an anchor (&{event.anchor}) is not allowed: there are no aliases", line=line)
        if event.tag is not None:
            raise Refused("a tag (!) is not allowed; quote what is to be a text", line=line)


def _scalar(text: str, line: int) -> Any:
    """What a word without quotes means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > 20:
            raise Refused("an integer has at most 20 digits; quote it, if it is a text", line=line)
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number - number != 0:
            raise Refused("a number is too large", line=line)
        return number
    return text


def told(message: str) -> tuple[str, Path]:
    """What msgspec says of a value that has not the wanted shape: the reason and, as far as it says that, where."""
    found = _AT.fullmatch(message)
    if found is None:
        return message, ()
    # Of an object whose members may have any name it does not say which one it was.
    known = found[2].partition("[...]")[0]
    return found[1], tuple(name or int(place) for name, place in _PART.findall(known))
