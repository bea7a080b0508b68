"""The rules of a policy as people write them: the document, checked before anything is stored.

A document names its format, its rules in order, and what holds when none of them matches. Whoever
wrote something else than is written here is told where and what: a misspelt condition must not become
a rule that matches everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import UNSET, Meta, Struct

from holdfast.core.decision import (
    CHOICES,
    DEFAULT_RULE,
    EXPIRES_S,
    ApprovalDemand,
    Choice,
    Constraints,
    Per,
    Rate,
    are_enough,
)
from holdfast.core.document import Path, Refused, load_document, told
from holdfast.core.expression import compile_expression
from holdfast.core.job import Job
from holdfast.core.schema import compile_schema
from holdfast.core.states import Risk
from holdfast.core.template import compile_template
from holdfast.errors import Invalid

RULES_MAX = 1_000
STARS_MAX = 3
RESPONSE_SCHEMA_BYTES_MAX = 16_384
"""As JSON. Every approval keeps it, and every job that waits for one: it is a form for a person, no data model."""
NAMES = ("payload", "labels", "tenant", "topic", "risk", "actor", "priority", "session", "run", "step")
"""The variables of `when` and of `effect_preview`."""

Action = Literal["allow", "deny", "require_approval", "throttle"]
Failing = Literal["open", "closed"]
Glob = Annotated[str, Meta(min_length=1, max_length=128)]
Globs = Glob | Annotated[list[Glob], Meta(min_length=1, max_length=100)]
Choices = Annotated[list[Choice], Meta(min_length=1, max_length=len(Choice))]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]

_GLOB = re.compile(r"[A-Za-z0-9_.:@/+*-]+")
_RATE = re.compile(r"([0-9]{1,6})/(s|m|h)")
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Match(_Part, frozen=True, kw_only=True):
    """All that is said must fit; of several globs, one. `*` stands for any text."""

    tenant: Globs | None = None
    topic: Globs | None = None
    labels: Annotated[dict[str, Annotated[str, Meta(max_length=256)]], Meta(max_length=32)] = {}
    """The value may be a glob; `*` only asks that the label be there."""
    risk: Risk | Annotated[list[Risk], Meta(min_length=1)] | None = None
    actor: Globs | None = None


class Approval(_Part, frozen=True, kw_only=True):
    approvers: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=100)] = []
    quorum: Annotated[int, Meta(ge=1, le=20)] = 1
    expires_s: Seconds = EXPIRES_S
    separate: bool = False
    choices: Choices | None = None
    response_schema: dict[str, Any] | None = None
    effect_preview: Annotated[str, Meta(max_length=2_000)] = ""
    """A template: what a yes would do, for whoever decides."""


class Limits(_Part, frozen=True, kw_only=True):
    rate: Annotated[str, Meta(max_length=20)] | None = None
    """`10/s`, `100/m`, `1000/h`."""
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """How many at once; left out: as many as the rate names."""
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    per: Per = Per.TENANT


class Bounds(_Part, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    priority_max: Annotated[int, Meta(ge=-100, le=100)] | None = None
    timeout_s: Seconds | None = None
    labels: Annotated[dict[str, Annotated[str, Meta(max_length=256)]], Meta(max_length=32)] = {}


class Default(_Part, frozen=True, kw_only=True):
    """What holds when no rule matches."""

    action: Action
    reason: Annotated[str, Meta(max_length=500)] = ""
    approval: Approval | None = None
    throttle: Limits | None = None
    constraints: Bounds | None = None


class Rule(Default, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$(?!\n)")]
    match: Match = Match()
    when: str | None = None


class Rules(_Part, frozen=True, kw_only=True):
    """A whole document."""

    format: Literal[1]
    default: Default
    rules: Annotated[list[Rule], Meta(max_length=RULES_MAX)] = []
    on_failure: dict[Risk, Failing] = {}
    """By risk: what a job gets when the policy cannot be evaluated. Left out: closed."""
    timeout_ms: Annotated[int, Meta(ge=1, le=1000)] = 50


class Fault(NamedTuple):
    """What is wrong with a document, and where."""

    path: Path
    reason: str


class BadRules(Invalid):
    """A document that cannot be a policy. `faults` are all that was found."""

    def __init__(self, faults: list[Fault], where: Callable[[Path], str] = lambda _: "") -> None:
        super().__init__("\n".join(f"{where(fault.path)}{shown(fault.path)}: {fault.reason}" for fault in faults))
        self.faults = faults


def load_rules(text: str, *, name: str) -> Any:
    """The document in a file, as a JSON value, checked. TOML by the file's name, else YAML.

    Raises `Invalid`; each line of what it says begins with the name and the line in the file.
    """
    try:
        if name.endswith(".toml"):
            value, line_of = _load_toml(text)
        else:
            document = load_document(text)
            value, line_of = document.value, document.line_of
    except Refused as error:
        raise Invalid(f"{name}:{error.line}: {error.reason}") from None
    try:
        read_rules(value)
    except BadRules as error:
        raise BadRules(error.faults, lambda path: f"{name}:{line_of(path)}: ") from None
    return value


def read_rules(value: Any) -> Rules:
    """Raises `BadRules`."""
    try:
        rules = msgspec.convert(value, Rules)
    except msgspec.ValidationError as error:
        raise BadRules([_fault(str(error))]) from None
    if faults := list(_faults(rules)):
        raise BadRules(faults)
    return rules


def demand(asked: Approval | None) -> ApprovalDemand:
    asked = asked or Approval()
    return ApprovalDemand(
        approvers=asked.approvers,
        quorum=asked.quorum,
        expires_s=asked.expires_s,
        separate=asked.separate,
        choices=CHOICES if asked.choices is None else tuple(asked.choices),
        response_schema=UNSET if asked.response_schema is None else asked.response_schema,
        effect_preview=asked.effect_preview or UNSET,
    )


def constraints(bounds: Bounds | None) -> Constraints | None:
    return None if bounds is None else msgspec.convert(msgspec.to_builtins(bounds), Constraints)


def rate(limits: Limits) -> Rate | None:
    if limits.rate is None:
        return None
    found = _RATE.fullmatch(limits.rate)
    assert found is not None, "checked by read_rules"
    count = int(found[1])
    return Rate(_PERIODS[found[2]] / count, limits.burst or count)


def variables_of(job: Job, names: Collection[str]) -> dict[str, Any]:
    """Of a job, what expressions may read. The payload only for those that do: it must be decoded."""
    read: dict[str, Any] = {name: getattr(job, name) for name in names if name != "payload"}
    if "payload" in names:
        read["payload"] = msgspec.json.decode(job.payload)
    return read


def globs(given: Globs | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else given


def shown(path: Path) -> str:
    """A path as people write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "document"


def _faults(rules: Rules) -> Iterator[Fault]:
    yield from _faults_of_action(rules.default, ("default",))
    seen: set[str] = set()
    for n, rule in enumerate(rules.rules):
        path: Path = ("rules", n)
        if rule.name in seen or rule.name == DEFAULT_RULE:
            yield Fault((*path, "name"), f"there is another rule called {rule.name!r}")
        seen.add(rule.name)
        yield from _faults_of_action(rule, path)
        yield from _faults_of_separation(rule, path)
        yield from _faults_of_match(rule.match, (*path, "match"))
        if rule.when is not None:
            try:
                compile_expression(rule.when, names=NAMES)
            except Invalid as error:
                yield Fault((*path, "when"), str(error))


def _faults_of_action(rule: Default, path: Path) -> Iterator[Fault]:
    if rule.action == "deny" and not rule.reason:
        yield Fault(path, "a denial needs a reason: the caller is told it")
    if rule.approval is not None:
        if rule.action != "require_approval":
            yield Fault((*path, "approval"), f"only for the action require_approval, not {rule.action}")
        else:
            asked = rule.approval
            found = (
                *faults_of_approvers(asked.approvers, asked.quorum),
                *faults_of_choices(asked.choices, asked.response_schema, others=asked.separate or asked.quorum > 1),
                *_faults_of_preview(asked.effect_preview),
            )
            yield from (Fault((*path, "approval", *fault.path), fault.reason) for fault in found)
    if rule.constraints is not None and rule.action == "deny":
        yield Fault((*path, "constraints"), "a denied job has none")
    yield from _faults_of_limits(rule, (*path, "throttle"))


def _faults_of_separation(rule: Rule, path: Path) -> Iterator[Fault]:
    """What every job of the rule would be refused for. What only some are, they are told: others may ask for them."""
    asked, actor = rule.approval, rule.match.actor
    if asked is None or not asked.separate or actor is None:
        return
    actors = [actor] if isinstance(actor, str) else actor
    if not any("*" in name or are_enough(asked.approvers, asked.quorum, without={name}) for name in actors):
        whose = f"what {actors[0]} asks for: who asks may not approve it (separate), and too few are left"
        yield Fault((*path, "approval", "quorum"), f"nobody could approve {whose}")


def faults_of_approvers(approvers: Sequence[str], quorum: int) -> Iterator[Fault]:
    """What keeps these from ever being asked, or from ever being enough."""
    if not are_enough(approvers, quorum):
        yield Fault(("quorum",), "more than there are approvers")
    for name in approvers:
        yield from _faults_of_glob(name, ("approvers",))


def faults_of_choices(
    choices: Sequence[Choice] | None, response_schema: dict[str, Any] | None, *, others: bool
) -> Iterator[Fault]:
    """What keeps these from ever being a yes, or an answer from ever being given. `others`: no single person decides."""
    if response_schema is not None:
        size = len(msgspec.json.encode(response_schema))
        try:
            if size > RESPONSE_SCHEMA_BYTES_MAX:
                raise Invalid(f"the schema of an answer has at most {RESPONSE_SCHEMA_BYTES_MAX} bytes, not {size}")
            compile_schema(response_schema)
        except Invalid as error:
            yield Fault(("response_schema",), str(error))
    if choices is None:
        return
    if Choice.RESPOND in choices and response_schema is None:
        yield Fault(("choices",), "respond needs a response_schema: what an answer must look like")
    if response_schema is not None and Choice.RESPOND not in choices:
        yield Fault(("choices",), "with a response_schema, respond must be among them")
    if set(choices) == {Choice.REJECT}:
        yield Fault(("choices",), "only reject: nobody could say yes")
    elif others and not {Choice.APPROVE, Choice.RESPOND} & set(choices):
        yield Fault(("choices",), "an edit is for others to approve here: approve must be among them")


def _faults_of_preview(template: str) -> Iterator[Fault]:
    try:
        compile_template(template, names=NAMES)
    except Invalid as error:
        yield Fault(("effect_preview",), str(error).removeprefix("$: "))


def _faults_of_limits(rule: Default, path: Path) -> Iterator[Fault]:
    limits = rule.throttle
    if rule.action == "throttle" and (limits is None or (limits.rate is None and limits.concurrency is None)):
        yield Fault(path, "the action throttle needs a rate, a concurrency, or both")
    if limits is None:
        return
    if rule.action != "throttle":
        yield Fault(path, f"only for the action throttle, not {rule.action}")
    if limits.rate is not None and not _is_rate(limits.rate):
        yield Fault((*path, "rate"), "a rate is a number per s, m or h: 10/s, 100/m, 1000/h")
    if limits.burst is not None and limits.rate is None:
        yield Fault((*path, "burst"), "needs a rate")


def _is_rate(text: str) -> bool:
    found = _RATE.fullmatch(text)
    return found is not None and int(found[1]) > 0


def _faults_of_match(match: Match, path: Path) -> Iterator[Fault]:
    for name in ("tenant", "topic", "actor"):
        for glob in globs(getattr(match, name)):
            yield from _faults_of_glob(glob, (*path, name))
    for label, value in match.labels.items():
        if not _GLOB.fullmatch(label) or "*" in label:
            yield Fault((*path, "labels", label), "the name of a label is plain; only its value may contain *")
        yield from _faults_of_stars(value, (*path, "labels", label))


def _faults_of_glob(glob: str, path: Path) -> Iterator[Fault]:
    if not _GLOB.fullmatch(glob):
        yield Fault(path, f"{glob!r} cannot match: letters, digits, _ . : @ / + - and * for any text")
    yield from _faults_of_stars(glob, path)


def _faults_of_stars(glob: str, path: Path) -> Iterator[Fault]:
    """Each star multiplies what there is to try."""
    if glob.count("*") > STARS_MAX:
        yield Fault(path, f"at most {STARS_MAX} * in one text")


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


def _fault(message: str) -> Fault:
    """What the decoder says, as a path and a reason."""
    reason, path = told(message)
    if unknown := _UNKNOWN.fullmatch(reason):
        return Fault((*path, unknown[1]), "no such field here")
    if missing := _MISSING.fullmatch(reason):
        why = ": say what holds when no rule matches" if missing[1] == "default" else ""
        return Fault(path, f"{missing[1]} is missing{why}")
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    if reason.startswith("Invalid enum value") and name in _CHOICES:
        reason += f" (there are: {_CHOICES[name]})"
    return Fault(path, reason)


_CHOICES: dict[str, str] = {
    "format": "1",
    "action": ", ".join(get_args(Action)),
    "risk": ", ".join(Risk),
    "on_failure": ", ".join(Risk),
    "per": ", ".join(Per),
    "choices": ", ".join(Choice),
}


def _load_toml(text: str) -> tuple[Any, Callable[[Path], int]]:
    import tomllib  # noqa: PLC0415  (YAML is the rule)

    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        raise Refused(f"not TOML: {error}", line=int(found[1]) if found else text.count("\n") + 1) from None
    begins = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)]

    def line_of(path: Path) -> int:
        """TOML's reader keeps no lines: that of the rule is near enough."""
        rule = path[1] if len(path) > 1 and path[0] == "rules" else None
        return begins[rule] if isinstance(rule, int) and rule < len(begins) else 1

    return value, line_of
