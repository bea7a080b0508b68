"""A run and the world around it, without a plane: records in a dict, commands in a list, time in hand.

It reads only what `advance` asks for and writes by version, as an engine does, and watches over what must
hold for any run: a key is used once, and nothing begins before all it depends on has ended.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from holdfast.core.advance import advance, begin, needed
from holdfast.core.job import UNDO, Tenant
from holdfast.core.run import (
    STEP_TERMINAL,
    Run,
    RunState,
    Step,
    StepState,
    run_of,
    run_record,
    step_of,
    step_record,
)
from holdfast.core.run_words import (
    Advance,
    AskApproval,
    CancelJob,
    CancelRun,
    Command,
    Draw,
    Happening,
    JobEnded,
    Needed,
    NewRun,
    Notify,
    StartRun,
    SubmitJob,
    TimerDue,
)
from holdfast.core.states import State
from holdfast.core.workflow_check import parse
from holdfast.core.workflow_graph import Graph, owner_of

Order = SubmitJob | AskApproval | StartRun | Notify


class Plenty:
    """A tenant without limits, or with so many jobs and runs that it may have."""

    def __init__(self, runs: int) -> None:
        self.jobs = 10**9
        self.runs = runs

    def why_no_job(self, topic: str, *, more: int, more_of_topic: int) -> str:
        return "" if more < self.jobs else "no more jobs"

    def why_no_run(self, *, more: int) -> str:
        return "" if more < self.runs else "no more runs"


class World:
    def __init__(self, definition: str, run_input: Any = None, *, session: str = "", runs: int = 10**9) -> None:
        self.graph = Graph.of(parse(definition))
        self.now = 1_000.0
        self.commands: list[Command] = []
        self.notes: list[str] = []
        self.reads: list[int] = []
        """How many step records each turn had to read."""
        self.writes: list[int] = []
        self.steps: dict[str, Step] = {}
        """As they would be read."""
        self.room = Plenty(runs)
        self._keys: set[str] = set()
        self._numbers = iter(range(10**9))
        self._draw = Draw(random.Random(0).random, lambda: f"id-{next(self._numbers)}")
        bound = self.graph.bind_input(run_input or {})
        new = NewRun(id="r", tenant=Tenant("acme"), revision=1, input=bound, session=session)
        self.run: Run
        self._write(begin(self.graph, new, now=self.now, draw=self._draw, room=self.room))

    # -- what happens ----------------------------------------------------------------------------------

    def hear(self, *happenings: Happening) -> Advance:
        wanted = needed(self.graph, self.run, happenings)
        steps: dict[str, Step | None] = {}
        for _ in range(200):
            steps |= {name: self.steps.get(name) for name in wanted.names}
            outline = {name: step.outline for name, step in self.steps.items()} if wanted.outline else None
            answer = advance(
                self.graph,
                self.run,
                steps,
                happenings,
                outline=outline,
                now=self.now,
                draw=self._draw,
                room=self.room,
            )
            if not isinstance(answer, Needed):
                self.reads.append(len(steps))
                self._write(answer)
                return answer
            assert answer.outline > wanted.outline or answer.names - set(steps), "it asks for what it was given"
            wanted = Needed(answer.names, answer.outline or wanted.outline)
        raise AssertionError("it never has enough")

    def succeed(self, name: str, output: Any = None) -> Advance:
        return self.hear(JobEnded(name, self.step(name).ref, State.SUCCEEDED, msgspec.json.encode(output)))

    def fail(self, name: str, state: State = State.FAILED) -> Advance:
        return self.hear(JobEnded(name, self.step(name).ref, state, None, {"code": "boom", "message": "it broke"}))

    def wait(self, seconds: float) -> None:
        """Let time go by, and fire each timer as it comes due."""
        end = self.now + seconds
        while True:
            due = [(step.due, step.name) for step in self.steps.values() if step.due is not None]
            if self.run.deadline is not None and not self.run.is_terminal and self.run.ending is None:
                due.append((self.run.deadline, ""))
            due = [one for one in due if one[0] <= end]
            if not due:
                break
            self.now = max(self.now, min(due)[0])
            assert self.hear(TimerDue(min(due)[1])).changed, f"a timer that does nothing: {min(due)}"
        self.now = end

    # -- what is seen ----------------------------------------------------------------------------------

    def state(self) -> RunState:
        return self.run.state

    def step(self, name: str) -> Step:
        return self.steps[name]

    def states(self) -> dict[str, str]:
        return {name: step.state.value for name, step in self.steps.items()}

    def output(self, name: str) -> Any:
        return msgspec.json.decode(self.step(name).output)

    @property
    def run_output(self) -> Any:
        return msgspec.json.decode(self.run.output)

    def orders(self) -> dict[str, Order]:
        """By step: what is under way for it, whether told to stop or not."""
        at_work = (StepState.RUNNING, StepState.ASKING, StepState.STOPPING)
        waited_for = {step.ref for step in self.steps.values() if step.state in at_work}
        made = [command for command in self.commands if isinstance(command, Order)]
        return {order.step: order for order in made if ref_of(order) in waited_for}

    def started(self) -> list[str]:
        return [command.step for command in self.commands if isinstance(command, Order)]

    def stopped(self) -> list[str]:
        return [command.step for command in self.commands if isinstance(command, CancelJob | CancelRun)]

    # -- the store -------------------------------------------------------------------------------------

    def _write(self, answer: Advance) -> None:
        self.writes.append(len(answer.steps) + len(answer.removed))
        for step in answer.removed:
            assert self.steps.pop(step.name).version == step.version
        for name, step in answer.steps.items():
            stored = self.steps.get(name)
            assert (stored.version if stored else 0) == step.version, name
            self.steps[name] = step_of(step_record(step))
        self.run = run_of(run_record(answer.run)) if answer.changed else self.run
        self.notes += [note.kind for note in answer.notes]
        for command in answer.commands:
            self.commands.append(command)
            if isinstance(command, Order):
                self._watch(command)
        self._check_counts()

    def _watch(self, order: Order) -> None:
        assert order.key == f"run/r/{order.step}/{order.attempt}"
        assert order.key not in self._keys, "a key is used once"
        self._keys.add(order.key)
        if not order.step.endswith(UNDO):
            for edge in self.graph.nodes[owner_of(order.step)].waits_for:
                assert self.step(edge.step).state in STEP_TERMINAL, f"{order.step} began before {edge.step} had ended"

    def _check_counts(self) -> None:
        slotted = [step for step in self.steps.values() if step.kind in ("job", "workflow", "notify")]
        active = [step for step in slotted if step.state in (StepState.RUNNING, StepState.STOPPING)]
        assert self.run.active == len(active)
        if self.run.is_terminal:
            assert [step.name for step in self.steps.values() if not step.is_terminal] == []
        if self.run.state is RunState.RUNNING:
            ended = [name for name in self.graph.nodes if name in self.steps and self.step(name).is_terminal]
            assert self.run.open == len(self.graph.nodes) - len(ended)


def ref_of(order: Order) -> str:
    match order:
        case SubmitJob():
            return order.job
        case AskApproval():
            return order.approval
        case StartRun():
            return order.run
        case Notify():
            return order.post
