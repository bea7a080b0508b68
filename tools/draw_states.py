"""Draw `docs/explanation/job-states.md` from the table of transitions: `python tools/draw_states.py`."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.states import TERMINAL, TRANSITIONS, Event, State

PAGE = Path(__file__).parent.parent / "docs/explanation/job-states.md"

HEAD = """\
# Job states

Drawn from `TRANSITIONS` in `src/holdfast/core/states.py` by `tools/draw_states.py`; a test compares the two. No other change of state is
possible: everything goes through `step`, which knows this table and nothing else. [The life of a job](life-of-a-job.md) tells the story.
"""


def diagram() -> str:
    """Events between the same two states share an arrow."""
    arrows: dict[tuple[State, State], list[Event]] = {}
    for (state, event), target in TRANSITIONS.items():
        arrows.setdefault((state, target), []).append(event)
    lines = [f"    {state} --> {target}: {', '.join(events)}" for (state, target), events in arrows.items()]
    ends = [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {State.PENDING}", *lines, *ends, "```"])


def table() -> str:
    rows = [f"| {state} | `{event}` | {target} |" for (state, event), target in TRANSITIONS.items()]
    return "\n".join(["| from | event | to |", "|---|---|---|", *rows])


def page() -> str:
    return f"{HEAD}\n{diagram()}\n\n{table()}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
