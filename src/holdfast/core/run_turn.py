"""One turn of a run: what is known of it, and what has been decided so far.

A turn knows the steps that were read for it. Asked for another one it gives up with `Unread`, nothing
is kept of it, and it is taken again when that one has been read: decisions are pure, so that costs only time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.expression import Expression
from holdfast.core.job import UNDO
from holdfast.core.run import LOOK_S, Held, Run, RunState, Step, StepState
from holdfast.core.run_words import Advance, Command, Draw, Needed, Room, Said, StartRun, SubmitJob
from holdfast.core.template import Template
from holdfast.core.workflow import Compensation, JobStep
from holdfast.core.workflow_graph import Graph, Node

SLOTTED = frozenset({"job", "workflow", "notify"})
"""Kinds that count as active: something outside of the run is at work for them."""
TOO_MANY_JOBS = "too-many-jobs"
TOO_MANY_RUNS = "too-many-runs"
SESSION_BUSY = "session-busy"
OUTLINED_FROM = 16
"""Steps: with more of them it is cheaper to ask for an outline of all than to read each."""
_AT_WORK = (StepState.RUNNING, StepState.STOPPING)

Error = dict[str, Any]


class Unread(Exception):
    def __init__(self, needed: Needed) -> None:
        super().__init__()
        self.needed = needed


class Turn:
    def __init__(
        self,
        graph: Graph,
        run: Run,
        steps: Mapping[str, Step | None],
        *,
        outline: Mapping[str, Step] | None,
        now: float,
        draw: Draw,
        room: Room,
    ) -> None:
        self.graph = graph
        self.run = run
        self.now = now
        self.draw = draw
        self.ended: deque[str] = deque()
        """Steps that have ended and whose followers do not know yet."""
        self.commands: list[Command] = []
        self.removed: dict[str, Step] = {}
        self._before = run
        self._read = steps
        self._outline = outline
        self._absent: set[str] = set()
        self._changed: dict[str, Step] = {}
        self._notes: list[Said] = []
        self._decoded: dict[str, Any] = {}
        self._room = room
        self._more: Counter[str] = Counter()
        """Jobs that begin with this turn, by topic; runs, under no name."""
        self._held: tuple[str, str] | None = None

    # -- the run ---------------------------------------------------------------------------------------

    def change_run(self, **changes: Any) -> None:
        self.run = replace(self.run, **changes)

    def note(self, kind: str, /, **detail: Any) -> None:
        self._notes.append(Said(kind, detail))

    def answer(self) -> Advance:
        changed = bool(self._changed or self.removed or self.run is not self._before)
        if changed:
            held = self._hold()
            # There may be room at any time. A turn is told of.
            again = held.again(self.now) if held and held.code != SESSION_BUSY else None
            looks = (self.now + LOOK_S, self.run.deadline, again)
            limit = min(time for time in looks if time is not None)
            self.change_run(due=None if self.run.is_terminal else limit)
        return Advance(
            self.run, self._changed, list(self.removed.values()), self.commands, self._notes, changed=changed
        )

    def _hold(self) -> Held | None:
        """Say of the run whether its session or a limit holds it up, and since when."""
        before = self.run.held
        why = self._held if self.run.head and self.run.state is RunState.RUNNING else None
        if self.run.state is RunState.QUEUED:
            why = SESSION_BUSY, f"runs of session {self.run.session!r} that came before it have not ended"
        if why is None:
            held = None
        elif before is not None and before.code == why[0]:
            held = before
        else:
            held = Held(code=why[0], message=why[1], since=self.now)
            self.note("run.held", code=held.code, reason=held.message)
        if held is not before:
            self.change_run(held=held)
        return held

    # -- its steps -------------------------------------------------------------------------------------

    def find(self, name: str) -> Step | None:
        """The step as it is now; None: it was never reached."""
        if name in self._changed:
            return self._changed[name]
        if name in self.removed or name in self._absent:
            return None
        if name not in self._read and (self._outline is None or name in self._outline):
            raise Unread(Needed(frozenset({name})))
        return self._read.get(name)

    def look(self, name: str) -> Step | None:
        """As `find`, but what it has in and out may be missing."""
        unread = name not in self._changed and name not in self._read and name not in self.removed
        return self._outline[name] if unread and self._outline and name in self._outline else self.find(name)

    def get(self, name: str) -> Step:
        step = self.find(name)
        assert step is not None, name
        return step

    def require(self, names: Iterable[str]) -> None:
        """Ask for all of them at once, rather than one after the other."""
        if unread := self.unread(names):
            raise Unread(Needed(unread))

    def unread(self, names: Iterable[str]) -> frozenset[str]:
        known = (self._read, self._changed, self._absent)
        there = names if self._outline is None else (name for name in names if name in self._outline)
        return frozenset(name for name in there if not any(name in names_known for names_known in known))

    def assume_absent(self, names: Iterable[str]) -> None:
        """They were never there, or were removed when the run was run again: no need to look."""
        self._absent.update(names)

    def every_step(self) -> list[Step]:
        """An outline of all that were ever reached."""
        if self._outline is None:
            raise Unread(Needed(outline=True))
        names = dict.fromkeys((*self._outline, *self._read, *self._changed))
        return [step for name in names if (step := self.look(name)) is not None]

    def unended(self, names: Sequence[str]) -> list[Step]:
        """Those of them that have not ended. The others are not read, if they are many: each has an output."""
        if self._outline is None:
            if len(names) > OUTLINED_FROM:
                raise Unread(Needed(outline=True))
            self.require(names)
        live = [name for name in names if (step := self.look(name)) is not None and not step.is_terminal]
        self.require(live)
        return [self.get(name) for name in live]

    def put(self, step: Step, **changes: Any) -> Step:
        changed = replace(step, **changes) if changes else step
        self._changed[changed.name] = changed
        return changed

    def new_step(self, name: str, state: StepState, **fields: Any) -> Step:
        """A step that begins from nothing; only the number of its attempts is taken over from what was there."""
        gone = self.removed.pop(name, None)
        old = gone or self.look(name)
        step = Step(
            run=self.run.id,
            tenant=self.run.tenant,
            name=name,
            kind=kind_of(self.graph.node(name)),
            state=state,
            since=self.now,
            created_at=old.created_at if old else self.now,
            attempt=max(old.attempt if old else 0, fields.pop("attempt", 0)),
            version=old.version if old else 0,
            **fields,
        )
        return self.put(step)

    def remove(self, step: Step) -> None:
        self._changed.pop(step.name, None)
        self.removed[step.name] = step

    # -- its changes of state --------------------------------------------------------------------------

    def move(self, step: Step, state: StepState, **changes: Any) -> Step:
        """Into a state, counting who is at work."""
        before = step.kind in SLOTTED and step.state in _AT_WORK
        after = step.kind in SLOTTED and state in _AT_WORK
        if before != after:
            self.change_run(active=self.run.active + after - before)
        return self.put(step, state=state, since=self.now, **changes)

    def end(self, step: Step, state: StepState, *, output: bytes | None = None, error: Error | None = None) -> None:
        """The step has ended, once and for all. Its followers hear of it later in this turn."""
        assert not step.is_terminal, step.name
        self.change_run(order=self.run.order + 1)
        changes: dict[str, Any] = {"wake": None, "next": step.next, "error": error, "order": self.run.order}
        if output is not None:
            changes["output"] = Raw(output)
        if state is StepState.SUCCEEDED and self.graph.node(step.name).undo is not None:
            changes["undo"] = self.run.undo
            self.change_run(undo=step.name)
        self.move(step, state, **changes)
        told = {"step": step.name, **({"attempt": step.attempt} if step.attempt else {})}
        self.note(f"step.{state}", **told, **({"code": error.get("code", "")} if error else {}))
        self.ended.append(step.name)

    def fail(self, step: Step, code: str, message: str) -> None:
        self.end(step, StepState.FAILED, error={"code": code, "message": message})

    # -- those that could begin, and may not yet -------------------------------------------------------

    @property
    def may_begin(self) -> bool:
        return self.run.state is RunState.RUNNING

    def has_slot(self, step: Step) -> bool:
        """Whether the definition and the tenant's limits let it begin now."""
        node = self.graph.node(step.name)
        kind = kind_of(node)
        if kind not in SLOTTED:
            return True
        limit = self.graph.definition.max_parallel
        if limit is not None and self.run.active >= limit:
            return False
        if kind == "job":
            why = self._why_no_job(node)
            self._held = (TOO_MANY_JOBS, why) if why else self._held
        elif kind == "workflow" and self.run.active:
            # With nothing else under way it goes on: else runs that wait for room for theirs would keep it for ever.
            why = self._room.why_no_run(more=self._more[""])
            self._held = (TOO_MANY_RUNS, why) if why else self._held
        else:
            why = ""
        return not why

    def _why_no_job(self, node: Node) -> str:
        assert isinstance(node.spec, JobStep | Compensation)
        topic = node.spec.topic
        more = self._more.total() - self._more[""]
        return self._room.why_no_job(topic, more=more, more_of_topic=self._more[topic])

    def order(self, command: SubmitJob | StartRun) -> None:
        """A command that takes room of the tenant's."""
        self.commands.append(command)
        self._more[command.topic if isinstance(command, SubmitJob) else ""] += 1

    def push_ready(self, step: Step) -> None:
        self.move(step, StepState.READY, next="", wake=None)
        if self.run.tail:
            self.put(self.get(self.run.tail), next=step.name)
            self.change_run(tail=step.name)
        else:
            self.change_run(head=step.name, tail=step.name)

    def pop_ready(self) -> Step | None:
        """The first that may begin now; those that have ended in the meantime are passed over."""
        while self.run.head:
            step = self.get(self.run.head)
            if step.state is StepState.READY and not self.has_slot(step):
                return None
            self.change_run(head=step.next, tail=self.run.tail if step.next else "")
            step = self.put(step, next="")
            if step.state is StepState.READY:
                return step
        return None

    # -- expressions -----------------------------------------------------------------------------------

    def evaluate(self, expression: Expression, node: Node, step: Step) -> Any:
        """Raises `ExpressionFailed`."""
        return expression.evaluate(self.variables(node.reads, step))

    def evaluate_json(self, expression: Expression, node: Node, step: Step) -> Any:
        return expression.evaluate_json(self.variables(node.reads, step))

    def test(self, expression: Expression, node: Node, step: Step) -> bool:
        return expression.test(self.variables(node.reads, step))

    def fill(self, template: Template, node: Node, step: Step) -> Any:
        return template.fill(self.variables(node.reads, step))

    def variables(self, reads: frozenset[str], step: Step | None = None) -> dict[str, Any]:
        """What expressions may ask for: `input`, `steps`, `run`, and, in parts, `item` and `index`."""
        self.require(reads)
        run = self.run
        variables: dict[str, Any] = {
            "input": self._decode("", run.input),
            "steps": {name: self._view(name) for name in reads},
            "run": {
                "id": run.id,
                "workflow": run.workflow,
                "revision": run.revision,
                "actor": run.actor,
                "session": run.session,
                "labels": run.labels,
                "created_at": run.created_at,
            },
        }
        if step is not None and step.index >= 0:
            variables |= {"item": msgspec.json.decode(step.item), "index": step.index}
        if step is not None and step.name.endswith(UNDO):
            undone = self.get(step.name.removesuffix(UNDO))
            variables["output"] = self._decode(undone.name, undone.output)
        return variables

    def _view(self, name: str) -> dict[str, Any]:
        step = self.find(name)
        if step is None:
            return {"output": None, "state": StepState.WAITING.value, "error": None}
        return {"output": self._decode(name, step.output), "state": step.state.value, "error": step.error}

    def _decode(self, name: str, raw: Raw) -> Any:
        if name not in self._decoded:
            self._decoded[name] = msgspec.json.decode(raw)
        return self._decoded[name]


def kind_of(node: Node) -> str:
    return "job" if isinstance(node.spec, Compensation) else str(node.spec.__struct_config__.tag)


def is_part(name: str) -> bool:
    return name.endswith("]")
