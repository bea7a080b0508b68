"""The report as a page: everything in one file, for somebody who has never seen the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from holdfast.ops.drills.findings import Report, Sign, Trouble, Verdict, number
from holdfast.ops.drills.report import FIGURES, PROMISES, shown_figure
from holdfast.ops.picture import LEASES, SIGNS, TROUBLES, draw, numbered

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2329; max-width: 1020px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { margin-top: 2.5rem; border-top: 1px solid #dde1e6; padding-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e6e9ed; vertical-align: top; }
th { color: #59636e; font-weight: 600; } td.number { text-align: right; white-space: nowrap; }
.verdict { border-radius: 4px; padding: .1rem .5rem; color: #fff; font-weight: 600; white-space: nowrap; }
.kept { background: #1b7f3b; } .broken { background: #b00020; } .not-run { background: #6b7280; }
.quiet { color: #59636e; } .picture { overflow-x: auto; border: 1px solid #dde1e6; margin: 1rem 0 .4rem; }
.legend span { display: inline-block; margin-right: 1rem; font-size: 13px; }
.swatch { width: 12px; height: 12px; border-radius: 3px; vertical-align: -1px; margin-right: .3rem !important; }
ol.steps { font-size: 14px; } dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.2rem; }
tr.bad td { background: #fdecee; }
"""
WORDS = {
    "plane": "the program that keeps the jobs, and gives them to workers",
    "worker": "a program that takes a job and does it; in these drills they are called anna, ben, carl",
    "lease": "the right to work on a job, or to hold a lock, until a time; whoever has it renews it",
    "fence": "a number that grows with every lease: whoever keeps data refuses writes with a lower one",
    "takeover": "how long it took from the fault until somebody else had the work",
    "refused": "words and writes that came too late, and changed nothing",
    "blind window": "how long nobody looked after the work: from the end of the lease until somebody else had it",
}
INTRODUCTION = (
    "<p>In each drill a real fault was caused in real processes: stopped, killed, cut off. Each begins with what "
    "should happen; then comes what was measured. <b>Kept</b>: everything was as promised. <b>Broken</b>: at "
    "least one promise did not hold. <b>Not run</b>: the drill could not be carried out, nothing is known.</p>"
)
TITLES = {Verdict.KEPT: "kept", Verdict.BROKEN: "broken", Verdict.NOT_RUN: "not-run"}


def to_page(reports: Sequence[Report]) -> str:
    counts = Counter(report.verdict for report in reports)
    worst = next((v for v in (Verdict.BROKEN, Verdict.NOT_RUN, Verdict.KEPT) if counts[v]), Verdict.NOT_RUN)
    began = datetime.fromtimestamp(min((report.began_at for report in reports), default=0.0), UTC)
    told = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
    sites = ", ".join(dict.fromkeys(report.site for report in reports))
    body = "".join(
        (
            f"<h1>Failure drills {_badge(worst)}</h1>",
            f'<p class="quiet">{began:%Y-%m-%d %H:%M} UTC · {escape(sites)} · drills: {escape(told)}</p>',
            INTRODUCTION,
            _summary(reports),
            "<details><summary>What the words mean</summary><dl>",
            *(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS.items()),
            *(f"<dt>{name}</dt><dd>{escape(meaning)}</dd>" for name, meaning in PROMISES.items()),
            "</dl></details>",
            *(_section(report) for report in reports),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Failure drills</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>{body}</body></html>\n'
    )


def _badge(verdict: Verdict) -> str:
    return f'<span class="verdict {TITLES[verdict]}">{escape(verdict.value)}</span>'


def _summary(reports: Sequence[Report]) -> str:
    head = _row("th", ("drill", "promises", "verdict", *FIGURES.values(), "took"))
    rows = (
        "<tr>"
        f'<td><a href="#{escape(report.drill)}">{escape(report.drill)}</a><br><span class="quiet">{escape(report.title)}</span></td>'
        f"<td>{escape(' '.join(report.promises))}</td><td>{_badge(report.verdict)}</td>"
        + "".join(f'<td class="number">{escape(shown_figure(report, figure))}</td>' for figure in FIGURES)
        + f'<td class="number">{report.seconds:.1f} s</td></tr>'
        for report in reports
    )
    return f"<table>{head}{''.join(rows)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _section(report: Report) -> str:
    parts = [
        f'<h2 id="{escape(report.drill)}">{escape(report.title)} {_badge(report.verdict)}</h2>',
        f"<p><b>What should happen.</b> {escape(report.hypothesis)}</p>",
    ]
    parts += [f"<p>{name}: {escape(PROMISES[name])}</p>" for name in report.promises if name in PROMISES]
    if report.trouble:
        parts.append(f"<p><b>Could not be carried out.</b></p><pre>{escape(report.trouble)}</pre>")
    if report.findings:
        parts.append(_findings(report))
    if report.timeline.lanes:
        parts.append(
            f'<div class="picture">{draw(report.timeline, report.seconds)}</div>{_legend(report)}{_events(report)}'
        )
    return "".join(parts)


def _findings(report: Report) -> str:
    rows = (
        f'<tr class="{"" if finding.kept else "bad"}"><td>{escape(finding.promise)}</td><td>{escape(finding.claim)}</td>'
        f'<td class="number">{escape(number(finding.measured, finding.unit))}</td><td>{escape(finding.wanted or "-")}</td>'
        f"<td>{_badge(Verdict.KEPT if finding.kept else Verdict.BROKEN)}</td></tr>"
        for finding in report.findings
    )
    head = _row("th", ("promise", "claim", "measured", "wanted", "verdict"))
    return f"<p><b>What was measured.</b></p><table>{head}{''.join(rows)}</table>"


def _legend(report: Report) -> str:
    kinds = {band.kind for band in report.timeline.bands}
    colours = [("has the lease", LEASES[0])] if Trouble.LEASE in kinds else []
    colours += [(kind.value, colour) for kind, colour in TROUBLES.items() if kind in kinds]
    signs = {mark.kind for mark in report.timeline.marks}
    colours += [(sign.value, SIGNS[sign]) for sign in Sign if sign in signs]
    swatches = (
        f'<span><span class="swatch" style="background:{colour}"></span>{escape(name)}</span>'
        for name, colour in colours
    )
    return f'<p class="legend">{"".join(swatches)}</p>'


def _events(report: Report) -> str:
    """The numbers of the picture in words."""
    rows = (
        f'<tr><td class="number">{n}</td><td class="number">{mark.at:.2f} s</td><td>{escape(mark.lane)}</td>'
        f'<td>{escape(mark.label)}</td><td><span class="swatch" style="background:{SIGNS[mark.kind]};display:inline-block">'
        f"</span>{escape(mark.kind.value)}</td></tr>"
        for n, mark in numbered(report.timeline)
    )
    steps = "".join(f"<li>{escape(step.strip())}</li>" for step in report.steps)
    return (
        f"<p><b>The numbers in the picture.</b></p><table>{''.join(rows)}</table>"
        f'<details><summary>Everything the drill did</summary><ol class="steps">{steps}</ol></details>'
    )
