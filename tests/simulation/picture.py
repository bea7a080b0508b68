"""A story as a picture: a lane per process, leases as bands, messages as arrows, faults where they struck.

Everything says what it is when a pointer rests on it. `make replay … PICTURE=story.svg` draws one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from xml.etree import ElementTree as ET

from simulation.running import Ending, run
from simulation.watching import Affliction, Band, Message, Watch

PX_PER_S = 60
LEFT = 90
TOP = 60
LANE = 64
BAND, ROWS = 9, 3
"""The height of a band, and how many lie side by side before they cover each other."""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#e45756", "#bab0ac")
AFFLICTED = {"paused": "#ffd966", "stalled": "#ffe8b3", "cut off": "#d9d2e9", "dead": "#999999"}
LATE_S = 0.01
"""A message that took longer was delayed by somebody."""
FAINT, LATE, LOST, REPLY = "#bbbbbb", "#e69138", "#cc0000", "#76a5af"
HEADS = {FAINT: "usual", LATE: "late", LOST: "lost", REPLY: "reply"}
_CALL = re.compile(r"\w+ for \S+: ")
_LINE = re.compile(r"\s*(?P<at>[\d.]+) (?P<who>\S+) +(?P<what>.*)")


def draw(kind: str, seed: int, path: Path, *, without: frozenset[int] = frozenset()) -> Ending:
    """Tell the story once more, and write its picture to `path`."""
    watch = Watch()
    with watch.on():
        ending = run(kind, seed, without=without)
    verdict = ending.violation or "every promise was kept"
    canvas = Canvas(watch, ending)
    tree = canvas.paint(f"{kind} {seed}: {verdict}")
    ET.indent(tree, space="")
    path.write_bytes(ET.tostring(tree, encoding="utf-8", xml_declaration=True))
    return ending


@dataclass
class Canvas:
    watch: Watch
    ending: Ending

    def __post_init__(self) -> None:
        self._y = {lane: TOP + LANE * n + LANE // 2 for n, lane in enumerate(self.watch.lanes)}
        self._seconds = (
            max([message.arrivals[-1] for message in self.watch.messages if message.arrivals], default=0) + 1
        )
        self._rows: dict[tuple[str, bool], list[float]] = {}
        """Until when each row of a lane's bands is taken, of locks and of attempts."""
        self._width = LEFT + round(self._seconds * PX_PER_S) + 20
        self._height = TOP + LANE * len(self._y) + 20
        self._root = ET.Element("svg")

    def paint(self, title: str) -> ET.Element:
        root = self._root
        root.attrib |= {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(self._width),
            "height": str(self._height),
            "viewBox": f"0 0 {self._width} {self._height}",
            "font-family": "sans-serif",
            "font-size": "11",
        }
        ET.SubElement(root, "title").text = title
        self._add("rect", width="100%", height="100%", fill="white")
        self._text(8, 16, title, bold=True)
        self._heads()
        self._legend()
        self._axis()
        for affliction in self.watch.afflictions:
            self._afflict(affliction)
        for lane, y in self._y.items():
            group = self._add("g", kind="lane", data_process=lane)
            self._add("line", lane, into=group, x1=LEFT, x2=self._width - 20, y1=y, y2=y, stroke="#666666")
            self._text(8, y + 4, lane, bold=True, into=group)
        colours = dict(zip(dict.fromkeys(band.name for band in self.watch.bands), cycle(COLOURS), strict=False))
        for band in sorted(self.watch.bands, key=lambda band: band.start):
            self._band(band, colours[band.name])
        for message in self.watch.messages:
            self._message(message)
        self._words()
        for at, promise in self.watch.broken:
            self._add("line", promise, x1=self._x(at), x2=self._x(at), y1=TOP, y2=self._height, stroke=LOST)
            self._text(self._x(at) + 4, TOP - 4, f"BROKEN {promise}", fill=LOST)
        return root

    # -- the parts ---------------------------------------------------------------------------------

    def _heads(self) -> None:
        """An arrow's head has to be defined once per colour."""
        defined = self._add("defs")
        for colour, name in HEADS.items():
            head = self._add("marker", into=defined, id=name, orient="auto", viewBox="0 0 6 6", refX=5, refY=3)
            self._add("path", into=head, d="M0,0 L6,3 L0,6 z", fill=colour)

    def _legend(self) -> None:
        x = 8
        for word, colour in {**AFFLICTED, "late": LATE, "lost": LOST, "reply": REPLY}.items():
            self._add("rect", x=x, y=24, width=10, height=10, fill=colour)
            x = self._text(x + 14, 33, word)
        self._text(x, 33, "bands are leases and attempts, thin arrows messages; a tick is a line of the story")

    def _axis(self) -> None:
        for second in range(int(self._seconds) + 1):
            x = self._x(second)
            self._add("line", x1=x, x2=x, y1=TOP, y2=self._height - 20, stroke="#eeeeee")
            if second % 5 == 0:
                self._text(x + 2, self._height - 8, f"{second} s", fill="#666666")

    def _afflict(self, affliction: Affliction) -> None:
        y = self._y[affliction.lane]
        self._add(
            "rect",
            f"{affliction.lane} {affliction.what} from {affliction.start:.3f} s to {affliction.end:.3f} s",
            kind="fault",
            x=self._x(affliction.start),
            y=y - LANE // 2 + 4,
            width=_wide(min(affliction.end, self._seconds) - affliction.start),
            height=LANE - 8,
            fill=AFFLICTED[affliction.what],
        )

    def _band(self, band: Band, colour: str) -> None:
        ends = self._rows.setdefault((band.lane, band.of_job), [0.0] * ROWS)
        row = next((n for n, end in enumerate(ends) if end <= band.start), ROWS - 1)
        ends[row] = band.end
        y = self._y[band.lane] + (2 + BAND * row if band.of_job else -2 - BAND * (row + 1))
        self._add(
            "rect",
            f"{band.lane} has {band.name} with fence {band.fence} from {band.start:.3f} s to {band.end:.3f} s",
            kind="attempt" if band.of_job else "lease",
            x=self._x(band.start),
            y=y,
            width=_wide(min(band.end, self._seconds) - band.start),
            height=BAND - 1,
            rx=3,
            fill=colour,
            opacity=0.75,
        )

    def _message(self, message: Message) -> None:
        above, below = self._y[message.sender], self._y[message.receiver]
        sent = f"{message.sender} → {message.receiver}: {message.what} at {message.sent_at:.3f} s"
        if not message.arrivals:
            halfway = (above + below) / 2
            self._arrow(f"{sent}, lost", (message.sent_at, above), (message.sent_at + LATE_S, halfway), LOST)
            return
        for arrived in message.arrivals:
            colour = LATE if arrived - message.sent_at > LATE_S else FAINT
            self._arrow(f"{sent}, arrived at {arrived:.3f} s", (message.sent_at, above), (arrived, below), colour)
        arrived = message.arrivals[0]
        if message.answered_at is None:
            halfway = (above + below) / 2
            self._arrow(f"{sent}, its reply lost", (arrived, below), (arrived + LATE_S, halfway), LOST)
        elif message.answered_at - arrived > LATE_S:
            told = f"{sent}, answered at {message.answered_at:.3f} s"
            self._arrow(told, (arrived, below), (message.answered_at, above), REPLY)

    def _arrow(self, told: str, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """From one place to another, each a time and a height."""
        self._add(
            "line",
            told,
            kind="message",
            marker_end=f"url(#{HEADS[colour]})",
            x1=self._x(start[0]),
            y1=start[1],
            x2=self._x(end[0]),
            y2=end[1],
            stroke=colour,
        )

    def _words(self) -> None:
        """What the story says its processes did, as ticks on their lanes."""
        for line in self.ending.story:
            said = _LINE.fullmatch(line)
            if said is None or said["who"] not in self._y or _CALL.match(said["what"]):
                continue  # calls are drawn as messages and bands
            x, y = self._x(float(said["at"])), self._y[said["who"]]
            told = f"{said['at']} s: {said['what']}"
            self._add("line", told, kind="word", x1=x, x2=x, y1=y - 5, y2=y + 5, stroke="black")

    # -- drawing -----------------------------------------------------------------------------------

    def _x(self, at: float) -> float:
        return round(LEFT + at * PX_PER_S, 1)

    def _text(
        self, x: float, y: float, words: str, *, bold: bool = False, fill: str = "black", into: ET.Element | None = None
    ) -> int:
        """Write; about where it ends."""
        text = self._add("text", into=into, x=x, y=y, fill=fill, font_weight="bold" if bold else "normal")
        text.text = words
        return round(x + 7 * len(words) + 10)

    def _add(
        self, tag: str, told: str = "", *, kind: str = "", into: ET.Element | None = None, **attributes: float | str
    ) -> ET.Element:
        """An element that tells what it is to whoever points at it; `kind` is its class."""
        element = ET.SubElement(self._root if into is None else into, tag)
        if kind:
            element.attrib["class"] = kind
        element.attrib |= {name.replace("_", "-"): str(value) for name, value in attributes.items()}
        if told:
            ET.SubElement(element, "title").text = told
        return element


def _wide(seconds: float) -> float:
    """Never too thin to be seen."""
    return round(max(seconds * PX_PER_S, 1.5), 1)
