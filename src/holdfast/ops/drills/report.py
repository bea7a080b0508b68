"""Reports for programs and terminals: JSON, JUnit, text. The page for people is in `page.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import msgspec

from holdfast.errors import Invalid
from holdfast.ops.drills.findings import Figure, Finding, Report, Verdict, number

PROMISES = {
    "P1": "Fence: a write under an older fence is refused by whoever keeps the data.",
    "P2": "Trust window: work under a lease stops before anybody else can be given the lease.",
    "P3": "Ownership: release and renewal change nothing unless key and token both match.",
    "P4": "No job lost: what was acknowledged reaches exactly one final, visible state.",
    "P5": "One accepted attempt: each attempt begins once and ends once; late words are refused, counted and shown.",
    "P6": "State before publish: nothing is handed out before its state is written; what fails is taken back, or found.",
    "P7": "No orphan: everything unfinished falls under exactly one recovery rule, and is recovered once.",
    "P8": "Approvals: decided once, used once, for what was shown.",
    "P9": "Effects: what may have happened is never silently repeated; it lands on a worklist.",
}
FIGURES = {
    Figure.TAKEOVER_S: "takeover",
    Figure.STALE_REFUSED: "refused",
    Figure.DUPLICATES: "duplicates",
    Figure.LOST: "lost",
    Figure.BLIND_S: "blind window",
}


def shown_figure(report: Report, figure: Figure) -> str:
    if figure not in report.figures:
        return "-"
    return number(report.figures[figure], "s" if figure.endswith("_s") else "")


def to_json(reports: Sequence[Report]) -> bytes:
    """All of it: what `from_json` reads, with verdicts and bounds spelled out."""
    rows: list[dict[str, Any]] = []
    for report in reports:
        row: dict[str, Any] = msgspec.to_builtins(report)
        row["verdict"] = report.verdict.value
        for told, finding in zip(row["findings"], report.findings, strict=True):
            told |= {"kept": finding.kept, "wanted": finding.wanted}
        rows.append(row)
    return msgspec.json.format(msgspec.json.encode(rows), indent=2)


def from_json(raw: bytes) -> list[Report]:
    try:
        return msgspec.json.decode(raw, type=list[Report])
    except msgspec.DecodeError as error:
        raise Invalid(f"not a report of drills: {error}") from error


def to_junit(reports: Sequence[Report]) -> bytes:
    """A suite per drill, a case per finding: what a build server shows."""
    suites = ET.Element("testsuites", name="holdfast drill")
    for report in reports:
        broken = sum(not finding.kept for finding in report.findings)
        began = datetime.fromtimestamp(report.began_at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        suite = ET.SubElement(
            suites,
            "testsuite",
            {
                "name": report.drill,
                "timestamp": began,
                "time": f"{report.seconds:.2f}",
                "tests": str(len(report.findings) + bool(report.trouble)),
                "failures": str(broken),
                "errors": str(int(bool(report.trouble))),
            },
        )
        for finding in report.findings:
            _case(suite, report, finding)
        if report.trouble:
            case = ET.SubElement(suite, "testcase", name="carried out", classname=f"drill.{report.drill}", time="0")
            ET.SubElement(case, "error", message=report.trouble.splitlines()[0]).text = report.trouble
    ET.indent(suites)
    document: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document


def _case(suite: ET.Element, report: Report, finding: Finding) -> None:
    name = f"{finding.promise}: {finding.claim}"
    case = ET.SubElement(suite, "testcase", name=name, classname=f"drill.{report.drill}", time="0")
    measured = f"measured {number(finding.measured, finding.unit)}, wanted {finding.wanted or 'no bound'}"
    if finding.kept:
        ET.SubElement(case, "system-out").text = measured
    else:
        ET.SubElement(case, "failure", message=measured).text = report.hypothesis


def to_text(reports: Sequence[Report]) -> str:
    """For a terminal: one line per claim, and a table of figures at the end."""
    lines: list[str] = []
    for report in reports:
        lines += [f"{report.drill}: {report.verdict.upper()}  ({report.seconds:.1f} s, {report.site})"]
        lines += [f"  hypothesis: {report.hypothesis}"]
        lines += [_line(finding) for finding in report.findings]
        lines += [f"  could not be carried out: {report.trouble}"] if report.trouble else []
        lines += [""]
    return "\n".join([*lines, *_table(reports)])


def _line(finding: Finding) -> str:
    bound = f" (wanted: {finding.wanted})" if finding.wanted else ""
    sign = "kept  " if finding.kept else "BROKEN"
    return f"  {sign} {finding.promise}  {finding.claim}: {number(finding.measured, finding.unit)}{bound}"


def _table(reports: Sequence[Report]) -> list[str]:
    head = ["DRILL", "PROMISES", "VERDICT", *(name.upper() for name in FIGURES.values()), "TOOK"]
    rows = [
        [
            report.drill,
            " ".join(report.promises),
            report.verdict.value,
            *(shown_figure(report, figure) for figure in FIGURES),
            f"{report.seconds:.1f} s",
        ]
        for report in reports
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]


def broken_promises(reports: Sequence[Report]) -> list[str]:
    """The drills in which one did not hold, with which."""
    return [
        f"{report.drill} ({', '.join(sorted({finding.promise for finding in report.findings if not finding.kept}))})"
        for report in reports
        if report.verdict is Verdict.BROKEN
    ]
