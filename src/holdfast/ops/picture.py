"""A timeline as a picture (SVG): a lane per process, leases as bands, faults and refusals as numbered marks."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

from holdfast.ops.drills.findings import Band, Mark, Sign, Timeline, Trouble

WIDTH = 980
LEFT = 90
RIGHT = 20
TOP = 8
ROW = 22
PAD = 22
"""Above the bands of a lane: for marks and their numbers."""
AXIS = 26
LETTER_PX = 5.6

TROUBLES = {
    Trouble.PAUSED: "#ffe08a",
    Trouble.DEAD: "#c9c9c9",
    Trouble.CUT_OFF: "#d7c9f2",
    Trouble.OUTAGE: "#f6c1b4",
    Trouble.SLOW: "#fbe3c4",
}
LEASES = ("#4c78a8", "#3a8f82", "#8a5a9e", "#b3702f", "#5f7f2e", "#7a6f63")
SIGNS = {Sign.FAULT: "#b00020", Sign.REFUSED: "#d04a00", Sign.ACCEPTED: "#1b7f3b", Sign.NOTE: "#555555"}


def draw(timeline: Timeline, seconds: float) -> str:
    """The picture as an `svg` element, for a page or a file of its own. Marks carry the numbers of `numbered`."""
    return ET.tostring(_Picture(timeline, max(seconds, 0.1)).paint(), encoding="unicode")


def numbered(timeline: Timeline) -> list[tuple[int, Mark]]:
    """The marks in the order of time, with the numbers they have in the picture."""
    return list(enumerate(sorted(timeline.marks, key=lambda mark: mark.at), 1))


class _Picture:
    def __init__(self, timeline: Timeline, seconds: float) -> None:
        self._timeline = timeline
        self._first = _beginning(timeline)
        self._per_s = (WIDTH - LEFT - RIGHT) / max(0.1, seconds - self._first)
        self._seconds = seconds
        self._rows = {lane: _rows(timeline, lane) for lane in timeline.lanes}
        self._tops: dict[str, int] = {}
        y = TOP
        for lane in timeline.lanes:
            self._tops[lane] = y
            y += self._height(lane)
        self._bottom = y
        self._root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {WIDTH} {y + AXIS}",
                "width": str(WIDTH),
                "height": str(y + AXIS),
                "role": "img",
                "font-family": "sans-serif",
                "font-size": "11",
            },
        )

    def _height(self, lane: str) -> int:
        return PAD + ROW * max(1, max(self._rows[lane].values(), default=0) + 1) + 6

    def paint(self) -> ET.Element:
        self._add("rect", width="100%", height="100%", fill="#ffffff")
        for number, lane in enumerate(self._timeline.lanes):
            shade = "#f7f8fa" if number % 2 == 0 else "#ffffff"
            self._add("rect", x=0, y=self._tops[lane], width=WIDTH, height=self._height(lane), fill=shade)
            self._text(8, self._tops[lane] + PAD + 14, lane, fill="#222222", bold=True)
        self._axis()
        for band in self._timeline.bands:
            if band.kind is not Trouble.LEASE:
                self._trouble(band)
        colours: dict[str, str] = {}
        for band in self._timeline.bands:
            if band.kind is Trouble.LEASE:
                self._lease(band, colours.setdefault(band.lane, LEASES[len(colours) % len(LEASES)]))
        taken: dict[str, float] = {}
        for number, mark in numbered(self._timeline):
            self._mark(number, mark, taken)
        return self._root

    def _axis(self) -> None:
        step = next(step for step in (0.5, 1, 2, 5, 10, 20, 60, 600) if (self._seconds - self._first) / step <= 16)
        for n in range(math.ceil(self._first / step), int(self._seconds / step) + 1):
            x = self._x(n * step)
            self._add("line", x1=x, x2=x, y1=TOP, y2=self._bottom, stroke="#e3e5e8")
            self._text(x, self._bottom + 14, f"{n * step:g} s", fill="#666666", anchor="middle")

    def _trouble(self, band: Band) -> None:
        x, width = self._span(band)
        top = self._tops[band.lane]
        height = self._height(band.lane)
        shape = self._add("rect", x=x, y=top + 1, width=width, height=height - 2, fill=TROUBLES[band.kind], rx=2)
        _hint(shape, band.label)
        if len(band.label) * LETTER_PX < width:
            self._text(x + 4, top + height - 5, band.label, fill="#5a4a2a", size="10")

    def _lease(self, band: Band, colour: str) -> None:
        x, width = self._span(band)
        y = self._tops[band.lane] + PAD + ROW * self._rows[band.lane][id(band)]
        shape = self._add("rect", x=x, y=y, width=width, height=ROW - 6, fill=colour, rx=3, stroke="#ffffff")
        _hint(shape, band.label)
        room = int((width - 8) / LETTER_PX)
        if room >= 6:
            label = band.label if len(band.label) <= room else band.label[: room - 1] + "…"
            self._text(x + 4, y + 12, label, fill="#ffffff", size="10")

    def _mark(self, number: int, mark: Mark, taken: dict[str, float]) -> None:
        x = self._x(mark.at)
        y = self._tops[mark.lane] + 10
        colour = SIGNS[mark.kind]
        self._add("line", x1=x, x2=x, y1=y, y2=self._tops[mark.lane] + self._height(mark.lane) - 3, stroke=colour)
        # Numbers that would cover each other are put side by side.
        place = max(x, taken.get(mark.lane, 0.0))
        taken[mark.lane] = place + 16
        dot = self._add("circle", cx=place, cy=y, r=7.5, fill=colour)
        _hint(dot, f"{mark.at:.2f} s: {mark.label}")
        self._text(place, y + 3.5, str(number), fill="#ffffff", anchor="middle", size="9", bold=True)

    def _x(self, at: float) -> float:
        return round(LEFT + (min(max(at, self._first), self._seconds) - self._first) * self._per_s, 1)

    def _span(self, band: Band) -> tuple[float, float]:
        x = self._x(band.start)
        return x, round(max(2.0, self._x(self._seconds if band.end is None else band.end) - x), 1)

    def _add(self, tag: str, **attributes: object) -> ET.Element:
        return ET.SubElement(self._root, tag, {name: str(value) for name, value in attributes.items()})

    def _text(
        self, x: float, y: float, words: str, *, fill: str, anchor: str = "start", size: str = "11", bold: bool = False
    ) -> None:
        weight = "bold" if bold else "normal"
        options = {
            "x": str(x),
            "y": str(y),
            "fill": fill,
            "text-anchor": anchor,
            "font-size": size,
            "font-weight": weight,
        }
        ET.SubElement(self._root, "text", options).text = words


def _beginning(timeline: Timeline) -> float:
    """Where the picture begins: processes that start, and nothing else yet, need no room."""
    first = min([band.start for band in timeline.bands] + [mark.at for mark in timeline.marks], default=0.0)
    return max(0.0, math.floor(2 * first) / 2)


def _rows(timeline: Timeline, lane: str) -> dict[int, int]:
    """The row of each lease in its lane: those of one time lie below each other."""
    rows: dict[int, int] = {}
    ends: list[float] = []
    leases = [band for band in timeline.bands if band.lane == lane and band.kind is Trouble.LEASE]
    for band in sorted(leases, key=lambda band: band.start):
        end = float("inf") if band.end is None else band.end
        row = next((n for n, free in enumerate(ends) if free <= band.start), len(ends))
        if row == len(ends):
            ends.append(end)
        else:
            ends[row] = end
        rows[id(band)] = row
    return rows


def _hint(shape: ET.Element, words: str) -> None:
    ET.SubElement(shape, "title").text = words
