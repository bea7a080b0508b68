"""`holdfast top` in a terminal: it is painted anew, sees the plane go and come back, and leaves as it came."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace
from plane_shell import API_KEY, Plane, plane_in_thread

from holdfast.api.summary import Summary
from holdfast.cli.top import _ENTER, _HOME, _LEAVE, _REST_OF_LINE, _REST_OF_SCREEN, fitted, screen
from holdfast.ops.proxy import Proxy
from holdfast.testing.background import Background

WITHIN_S = 30.0
CTRL_C = b"\x03"
QUIET = Summary(
    at=100.0, states={}, topics={}, waiting_longest_s=None, totals={"submitted": 0, "dispatched": 0, "ended": 0},
    workers=[], locks_held=0, locks_contended=[], approvals_pending=0, effects_unknown=0, freezes=[], warnings=[],
)  # fmt: skip


class Terminal:
    """80 columns and 24 lines, with a command at work in it."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.said = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._keyboard, own = pty.openpty()
        termios.tcsetwinsize(own, (24, 80))

        def sit_down() -> None:
            os.login_tty(own)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "holdfast", *command],
            env={**os.environ, "TERM": "xterm", **environment},
            preexec_fn=sit_down,
        )
        os.close(own)

    def press(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def wait_frame(self, *wanted: str) -> str:
        """A whole screen that was painted from now on and has all of this on it."""
        start, deadline = len(self.said), time.monotonic() + WITHIN_S
        while True:
            assert self._hear(deadline), f"it ended after {self.said[-2000:]!r}"
            for frame in self.said[start:].split(_HOME)[1:]:
                whole, end, _ = frame.partition(_REST_OF_SCREEN)
                if end and all(word in whole for word in wanted):
                    return whole

    def wait_end(self) -> int:
        """The exit code, once everything was heard."""
        deadline = time.monotonic() + WITHIN_S
        while self._hear(deadline):
            continue
        return self.process.wait(WITHIN_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WITHIN_S)
        os.close(self._keyboard)

    def _hear(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._keyboard], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was said after {self.said[-2000:]!r}"
        try:
            heard = os.read(self._keyboard, 65536)
        except OSError:  # as Linux says that nobody sits at the other end any more
            heard = b""
        self.said += self._decoder.decode(heard)
        return heard != b""


@contextmanager
def reached(plane: Plane) -> Iterator[tuple[str, Background[Proxy]]]:
    """The plane at an address where it can be away."""
    way = Background(lambda: Proxy(urlsplit(plane.url).port or 0), "way-to-the-plane")
    yield way.value.url(plane.url), way
    way.stop()


def plain(frame: str) -> str:
    """As somebody reads it."""
    return " ".join(frame.replace(_REST_OF_LINE, "").split())


def test_top_is_painted_anew_until_ctrl_c_whatever_happens_to_the_plane(tmp_path: Path) -> None:
    with plane_in_thread(tmp_path) as plane, reached(plane) as (url, way):
        terminal = Terminal("top", "--url", url, HOLDFAST_API_KEY=API_KEY, XDG_CONFIG_HOME=str(tmp_path))
        try:
            first = terminal.wait_frame("SCHEDULED 0", "in all")
            plane.json("job", "submit", "nobodys.topic")
            changed = terminal.wait_frame("SCHEDULED 1", "/s")

            way.value.refusing = True
            way.call(way.value.cut)
            away = terminal.wait_frame("trying again")
            way.value.refusing = False
            back = terminal.wait_frame("SCHEDULED 1")

            terminal.press(CTRL_C)
            exit_code = terminal.wait_end()
        finally:
            terminal.close()

    assert "no worker is known" in first
    assert "nobodys.topic 1" in changed
    assert ("Check that the plane is up" in plain(away), "SCHEDULED" in away) == (True, False)
    assert "trying again" not in back
    assert exit_code == 130
    assert terminal.said.startswith(_ENTER)
    _, _, last = terminal.said.rpartition(_LEAVE)
    assert last.strip() == "", "nothing is left on the screen that was there before"


def test_rates_are_of_the_time_between_two_looks_and_never_negative() -> None:
    before = replace(QUIET, totals={"submitted": 10, "dispatched": 500, "ended": 0})
    after = replace(QUIET, at=102.0, totals={"submitted": 30, "dispatched": 3, "ended": 0})

    [line] = [line for line in screen(after, before) if line.startswith("rates")]

    # It counts from zero again, as a plane that was started anew.
    assert line == "rates     submitted 10/s  dispatched 0/s  ended 0/s   waiting longest -"


def test_nothing_is_lost_in_a_small_window() -> None:
    warning = "  waiting-long: a job has waited for 12 s   holdfast why job 066066417376006333a71a413cec2bff"

    assert fitted(["short", warning], columns=80, rows=23) == [
        "short",
        "  waiting-long: a job has waited for 12 s   holdfast why job",
        "          066066417376006333a71a413cec2bff",
    ]
    assert fitted(list("abcde"), columns=80, rows=4) == [
        "a", "b", "c", "(2 more lines; `holdfast top --once` has them all)",
    ]  # fmt: skip
