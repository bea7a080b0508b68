"""Progress of what takes long: on a terminal one line, in a file or a pipe lines, and not many."""

from __future__ import annotations

import io

from progress import EVERY_S, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_pipe_there_are_lines_now_and_then_and_the_last_one() -> None:
    out, clock = io.StringIO(), [0.0]
    progress = Progress(out, now=lambda: clock[0])
    for second in range(int(2 * EVERY_S) + 5):
        clock[0] = float(second)
        progress.show(f"{second} s")
    progress.end()
    progress.end()

    assert out.getvalue().splitlines() == ["0 s", "30 s", "60 s", "64 s"]
    assert "\r" not in out.getvalue()


def test_on_a_terminal_it_is_one_line_that_is_written_over() -> None:
    out = Terminal()
    progress = Progress(out)
    for word in ("a longer one", "short"):
        progress.show(word)
    progress.end()

    assert out.getvalue() == "\ra longer one\x1b[K\rshort\x1b[K\n"
