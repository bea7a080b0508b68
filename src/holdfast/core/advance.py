"""`begin` and `advance`: a run, and what was heard of it, in; the run as it is then, and what is to be done, out.

Nothing is done here. Whoever calls writes the run, the steps and what the commands ask for in one
transaction, or nothing at all: then the same happenings lead to the same answer again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from holdfast.core.job import UNDO
from holdfast.core.run import Run, RunState, Step, StepState
from holdfast.core.run_follow import follow
from holdfast.core.run_hear import hear, refusal
from holdfast.core.run_start import begin_step, deadline_of
from holdfast.core.run_turn import Turn, Unread, is_part
from holdfast.core.run_words import (
    Advance,
    CancelAsked,
    Draw,
    Happening,
    Needed,
    NewRun,
    PauseAsked,
    RerunAsked,
    ResumeAsked,
    Room,
    TurnCame,
)
from holdfast.core.workflow import ForEachStep
from holdfast.core.workflow_graph import Graph, owner_of

__all__ = ["advance", "begin", "needed", "refusal"]


def begin(graph: Graph, new: NewRun, *, now: float, draw: Draw, room: Room) -> Advance:
    """A new run, with all that does not wait for anything begun; of one that is queued, as soon as its turn comes."""
    run = Run(
        id=new.id,
        tenant=new.tenant,
        workflow=graph.definition.name,
        revision=new.revision,
        state=RunState.QUEUED if new.queued else RunState.RUNNING,
        since=now,
        created_at=now,
        input=Raw(msgspec.json.encode(new.input)),
        deadline=new.deadline,
        actor=new.actor,
        session=new.session,
        labels=new.labels,
        parent_run=new.parent_run,
        parent_step=new.parent_step,
        depth=new.depth,
    )
    turn = Turn(graph, run, {}, outline={}, now=now, draw=draw, room=room)
    turn.change_run(open=len(graph.nodes), deadline=deadline_of(turn))
    turn.note("run.started", workflow=run.workflow, revision=run.revision, by=run.actor)
    for name, node in graph.nodes.items():
        if not node.waits_for:
            begin_step(turn, turn.new_step(name, StepState.WAITING))
    follow(turn)
    return turn.answer()


def advance(
    graph: Graph,
    run: Run,
    steps: Mapping[str, Step | None],
    happenings: Iterable[Happening],
    *,
    outline: Mapping[str, Step] | None = None,
    now: float,
    draw: Draw,
    room: Room,
) -> Advance | Needed:
    """The run after all it has heard, in order; or which steps must be read before that can be said.

    In `steps` None means that there is no record; what is not in it has not been read, unless
    there is an `outline` of the whole run, which has not got it either. What was heard before, or is refused, changes nothing.
    """
    turn = Turn(graph, run, steps, outline=outline, now=now, draw=draw, room=room)
    try:
        for happening in happenings:
            hear(turn, happening)
            follow(turn)
        return turn.answer()
    except Unread as unread:
        return unread.needed


def needed(graph: Graph, run: Run, happenings: Iterable[Happening]) -> Needed:
    """What `advance` will most likely ask for. It may still ask for more."""
    names = {name for name in (run.head, run.tail, run.undo) if name}
    for happening in happenings:
        if isinstance(happening, CancelAsked | ResumeAsked | RerunAsked):
            return Needed(outline=True)
        if isinstance(happening, PauseAsked | TurnCame) or not happening.step:
            continue
        names.add(happening.step)
        if happening.step.endswith(UNDO):
            names.add(happening.step.removesuffix(UNDO))
        elif is_part(happening.step):
            names |= {owner_of(happening.step), *_next_part(graph, happening.step)}
        else:
            for follower in graph.nodes[happening.step].followers:
                node = graph.nodes[follower.step]
                # A join is told of each end, and asks for what it reads only with the last one.
                if len(node.waits_for) == 1:
                    names |= node.reads
                if run.generation or len(node.waits_for) > 1:
                    names.add(follower.step)
    return Needed(frozenset(names))


def _next_part(graph: Graph, name: str) -> set[str]:
    """The item that begins when this one ends, if they end in their order."""
    owner = owner_of(name)
    spec = graph.nodes[owner].spec
    if not isinstance(spec, ForEachStep):
        return set()
    return {f"{owner}[{int(name[len(owner) + 1 : -1]) + spec.parallel}]"}
