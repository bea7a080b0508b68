"""The audit's chain: what it proves, and what it finds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.audit import Act, Head, Line, Verdict, Verifier, line_record, next_line
from holdfast.core.job import Tenant
from holdfast.core.record import Record
from holdfast.gateway.approvals import SAID

ACME = Tenant("acme")


def chain(length: int, tenant: Tenant = ACME) -> list[Line]:
    lines: list[Line] = []
    head = Head()
    for n in range(length):
        act = Act(tenant=tenant, action="job.cancelled", subject=f"job/{n}", by="ana", reason="añb", detail={"n": n})
        lines.append(next_line(head, act, now=100.0 + n))
        head = Head(number=lines[-1].number, hash=lines[-1].hash)
    return lines


def end_of(lines: list[Line]) -> Head:
    return Head(number=lines[-1].number, hash=lines[-1].hash)


def judged(records: list[Record], head: Head, *known: Head) -> Verdict:
    verifier = Verifier(ACME, [head, *known])
    verifier.read(records)
    return verifier.verdict(head)


def test_a_whole_chain_is_covered_from_first_to_last() -> None:
    lines = chain(3)
    verdict = judged([line_record(line) for line in lines], end_of(lines))

    assert (verdict.broken, verdict.lines, verdict.first_at, verdict.last_at) == (None, 3, 100.0, 102.0)
    assert verdict.hash == lines[2].hash


def test_anybody_can_check_a_line_with_what_every_language_has() -> None:
    """The hash is over the one before, a newline, and the line as sorted JSON without spaces."""
    [first, second] = chain(2)
    said = {name: value for name, value in msgspec.to_builtins(second).items() if name != "hash"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert second.hash == hashlib.sha256(f"{first.hash}\n{text}".encode()).hexdigest()


def body(record: Record, **changes: Any) -> Record:
    said = {**msgspec.json.decode(record.body), **changes}
    return msgspec.structs.replace(record, body=msgspec.json.encode(said))


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda record: body(record, by="nobody"), "the line was changed"),
        (lambda record: body(record, at=7.0), "the line was changed"),
        (lambda record: body(record, detail={"n": 2}), "the line was changed"),
        (lambda record: body(record, previous="f" * 64), "the line does not follow the one before it"),
        (lambda record: msgspec.structs.replace(record, created_at=7.0), "the line was changed"),
        (lambda record: msgspec.structs.replace(record, state="job.retried"), "the line was changed"),
        (lambda record: msgspec.structs.replace(record, parent="job/9"), "the line was changed"),
        (lambda record: msgspec.structs.replace(record, body=b"{}"), "the line cannot be read"),
        (lambda record: msgspec.structs.replace(record, id="000000000009"), "the line is missing"),
    ],
)
def test_the_first_line_that_was_tampered_with_is_named(tamper: Callable[[Record], Record], why: str) -> None:
    lines = chain(4)
    records = [line_record(line) for line in lines]
    records[1] = tamper(records[1])

    verdict = judged(records, end_of(lines))

    assert (verdict.broken, verdict.why, verdict.lines) == (2, why, 1)


def test_what_was_cut_off_or_left_over_is_found() -> None:
    lines = chain(4)
    records = [line_record(line) for line in lines]

    assert judged(records[:3], end_of(lines)).why == "the chain ends here, but had 4 lines"
    assert judged([*records[:1], *records[2:]], end_of(lines)).broken == 2
    verifier = Verifier(ACME, [])
    verifier.read(records)
    assert "more lines than the 2" in verifier.verdict(Head(number=2, hash=lines[1].hash)).why


def test_lines_of_another_tenant_do_not_count_as_ours() -> None:
    others = chain(1, Tenant("other"))

    assert judged([line_record(others[0])], end_of(others)).why == "the line was changed"


def test_a_chain_that_was_made_anew_is_found_by_whoever_wrote_its_end_down() -> None:
    lines = chain(3)
    forged = [next_line(Head(), Act(tenant=ACME, action="x.done", subject="x"), now=1.0)]
    records = [line_record(line) for line in forged]

    assert judged(records, end_of(forged)).broken is None
    assert judged(records, end_of(forged), end_of(lines)).why == "the chain ends here, but had 3 lines"
    assert judged(records, end_of(forged), end_of(lines[:1])).why.startswith("the line is not the one that was known")


def test_actions_are_those_documented() -> None:
    """Both ways: what is written down, and what the page says is."""
    root = Path(__file__).parents[2]
    sources = "".join(p.read_text() for p in (root / "src/holdfast").rglob("*.py"))
    written = re.findall(r'(?:entry_of|_entry)\(\s*desk,\s*call,\s*"([a-z_]+\.[a-z_]+)"', sources)
    written += re.findall(r'\baction="([a-z_]+\.[a-z_]+)"', sources)
    written += SAID.values()
    page = (root / "docs/reference/audit.md").read_text()

    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE)) == set(written)
