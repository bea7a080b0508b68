"""What `why` may say: its table of codes is the documented one, its order holds, and what it tells people to type exists."""

from __future__ import annotations

import re
from pathlib import Path

from test_docs_commands import wrong

from holdfast.core.why import RANKS, Reason, Weight, finding, ranked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/why.md").read_text()


def test_codes_and_their_order_are_those_documented() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (blocked|waiting|working|ended|note) \|", PAGE, re.MULTILINE)

    assert rows == [(reason.value, RANKS[reason][1].value) for reason in Reason]


def test_every_situation_on_the_page_is_shown_by_a_test_that_names_its_code() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([a-z-]+)` \| `([\w/.]+)::(\w+)` \|$", PAGE, re.MULTILINE)
    missing = []
    for code, path, name in rows:
        source = (ROOT / path).read_text()
        body = source.partition(f"async def {name}(")[2].partition("\n@on_virtual_time")[0]
        if f"Reason.{Reason(code).name}" not in body and code != Reason.WAITS_FOR_STEP:
            missing.append(f"{path}::{name} does not speak of {code}")

    assert missing == []
    assert len(rows) >= 20
    assert len({code for code, *_ in rows}) >= 20


def test_what_it_tells_people_to_type_exists() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/holdfast/core").glob("why*.py"))
    told = {re.sub(r"\{[^}]*\}", "X", line) for line in re.findall(r'f?"(holdfast [a-z][^"]*)"', sources)}

    assert len(told) > 20
    assert {line: word for line in told if (word := wrong(line)) is not None} == {}


def test_heavier_findings_come_first_and_then_the_order_of_the_table() -> None:
    found = ranked(
        [
            finding(Reason.DEAD_LETTER, ""),
            finding(Reason.WORKERS_FULL, ""),
            finding(Reason.SESSION_BUSY, ""),
            finding(Reason.WAITS_FOR_STEP, "", weight=Weight.BLOCKED),
        ]
    )

    assert [one.reason for one in found] == [
        Reason.WAITS_FOR_STEP,
        Reason.SESSION_BUSY,
        Reason.WORKERS_FULL,
        Reason.DEAD_LETTER,
    ]


def test_evidence_of_nothing_is_left_out() -> None:
    assert finding(Reason.READY, "x", worker="", number=0, list=[], none=None).evidence == {"number": 0}
