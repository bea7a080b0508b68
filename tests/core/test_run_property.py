"""Whatever the shape of a workflow and the order of what happens: each step once, none lost, and an end.

W1: an end is recorded once, and nothing begins before all it depends on has ended (`World` watches).
W3: the same happenings again lead to the same commands.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from core.run_world import Order, World, ref_of
from holdfast.core.run import RUN_TERMINAL, RunState, StepState
from holdfast.core.run_words import (
    ApprovalDecided,
    AskApproval,
    CancelAsked,
    ChildRunEnded,
    Happening,
    JobEnded,
    Notify,
    NotifySent,
    PauseAsked,
    RerunAsked,
    ResumeAsked,
    StartRun,
    TimerDue,
)
from holdfast.core.states import State

TURNS_MAX = 400


@st.composite
def bodies(draw: Callable[..., Any], *, tolerant: bool) -> dict[str, Any]:
    body: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"kind": "job", "topic": "t"},
                {"kind": "job", "topic": "t", "retry": {"max_attempts": 2, "first_s": 1}},
                {"kind": "job", "topic": "t", "compensate": {"topic": "undo"}, "timeout_s": 100},
                {"kind": "approval", "message": "?"},
                {"kind": "delay", "seconds": 5},
                {"kind": "transform", "value": {"n": "${input.n}"}},
                {"kind": "workflow", "workflow": "other", "compensate": {"topic": "undo"}},
                {"kind": "notify", "webhook": "ops"},
            ]
        )
    )
    body = body | draw(st.sampled_from([{}, {}, {"when": "input.n > 0"}, {"when": "input.n > 5"}]))
    lenient = {"on_error": "continue"}
    return body | (lenient if tolerant else draw(st.sampled_from([{}, lenient, {"on_error": "fail"}])))


@st.composite
def definitions(draw: Callable[..., Any], *, tolerant: bool) -> dict[str, Any]:
    """With `tolerant` no failure ends the run, and no branch wins because it was faster."""
    steps: list[dict[str, Any]] = []
    for at in range(draw(st.integers(1, 7))):
        shape = draw(st.sampled_from(["plain"] * 4 + ["condition", "for_each", "parallel"]))
        match shape:
            case "condition":
                step: dict[str, Any] = {"kind": "condition", "test": "input.n > 1"}
            case "for_each":
                items = draw(st.integers(0, 4))
                body = draw(bodies(tolerant=tolerant))
                step = {"kind": "for_each", "items": str(list(range(items))), "parallel": 2, "step": body}
            case "parallel":
                branches = {name: draw(bodies(tolerant=tolerant)) for name in ("x", "y", "z")}
                wait = "all" if tolerant else draw(st.sampled_from(["all", "any", 2]))
                step = {"kind": "parallel", "branches": branches, "wait": wait}
            case _:
                step = draw(bodies(tolerant=tolerant))
        before = draw(st.lists(st.sampled_from(steps), max_size=3, unique_by=lambda s: s["id"])) if steps else []
        cases = [draw(st.sampled_from(["", "=true", "=false"])) if s["kind"] == "condition" else "" for s in before]
        edges = [s["id"] + case for s, case in zip(before, cases, strict=True)]
        steps.append({"id": f"s{at}", "depends_on": edges, **step})
    limit = draw(st.sampled_from([{}, {}, {"max_parallel": 2}]))
    timeout = {} if tolerant else draw(st.sampled_from([{}, {"timeout_s": 50}]))
    return {"name": "any", "steps": steps, **limit, **timeout}


def end_of(order: Order, *, good: bool, state: State = State.FAILED) -> Happening:
    error = None if good else {"code": "boom", "message": "it broke"}
    match order:
        case AskApproval():
            return ApprovalDecided(order.step, ref_of(order), "approved" if good else "rejected", {})
        case StartRun():
            return ChildRunEnded(
                order.step, ref_of(order), RunState.SUCCEEDED if good else RunState.FAILED, b"1", error
            )
        case Notify():
            return NotifySent(order.step, ref_of(order), error)
        case _:
            return JobEnded(order.step, ref_of(order), State.SUCCEEDED if good else state, b'"out"', error)


def next_timer(world: World) -> Happening | None:
    due = [(step.due, step.name) for step in world.steps.values() if step.due is not None]
    if not due:
        return None
    at, name = min(due)
    world.now = max(world.now, at)
    return TimerDue(name)


@settings(max_examples=80, deadline=None)
@given(
    definition=definitions(tolerant=True), failing=st.sets(st.integers(0, 40)), seeds=st.tuples(*[st.integers()] * 2)
)
def test_the_order_in_which_things_happen_does_not_change_what_comes_out(
    definition: dict[str, Any], failing: set[int], seeds: tuple[int, int]
) -> None:
    ends = [finished(definition, failing, random.Random(seed)) for seed in seeds]

    assert ends[0].run.state is RunState.SUCCEEDED
    assert ends[0].states() == ends[1].states()
    assert {n: ends[0].output(n) for n in ends[0].steps if not is_asked(ends[0], n)} == {
        n: ends[1].output(n) for n in ends[1].steps if not is_asked(ends[1], n)
    }
    assert set(ends[0].graph.nodes) <= set(ends[0].steps), "a step was lost"


def is_asked(world: World, name: str) -> bool:
    """An approval's output names it, and its id depends on what else there was before."""
    return "id-" in str(world.output(name))


def finished(definition: dict[str, Any], failing: set[int], order: random.Random) -> World:
    """The run, told of every end once or twice, in some order, alone or together with others."""
    world = World(msgspec.json.encode(definition).decode(), {"n": 2})
    for _ in range(TURNS_MAX):
        if world.run.is_terminal:
            return world
        heard: list[Happening] = [
            end_of(one, good=sum(map(ord, one.step)) % 41 not in failing) for one in world.orders().values()
        ]
        if timer := next_timer(world):
            heard.append(timer)
        assert heard, f"nothing left to happen: {world.states()}"
        told = order.sample(heard, order.randint(1, len(heard)))
        world.hear(*told, *order.sample(told, order.randint(0, len(told))))
    raise AssertionError("it does not end")


@settings(max_examples=100, deadline=None)
@given(definition=definitions(tolerant=False), seed=st.integers())
def test_whatever_happens_it_ends_and_its_history_leads_to_the_same_commands_again(
    definition: dict[str, Any], seed: int
) -> None:
    chaos = random.Random(seed)
    text = msgspec.json.encode(definition).decode()
    world = World(text, {"n": 2})
    history: list[tuple[float, list[Happening]]] = []
    reruns = 2
    for turn in range(TURNS_MAX):
        if world.run.is_terminal:
            if not reruns:
                break
            reruns -= 1
            told: list[Happening] = [RerunAsked(chaos.choice(list(world.graph.nodes)))]
        else:
            told = chaotic(world, chaos, calm=turn > TURNS_MAX // 2)
        history.append((world.now, told))
        world.hear(*told)

    assert world.state() in RUN_TERMINAL
    for name, step in world.steps.items():
        assert step.is_terminal, name
        assert step.state is not StepState.COMPENSATED or f"{name}~undo" in world.steps

    replayed = World(text, {"n": 2})
    for now, told in history:
        replayed.now = now
        replayed.hear(*told)
    assert replayed.commands == world.commands
    assert replayed.notes == world.notes
    assert replayed.steps.keys() == world.steps.keys()


def chaotic(world: World, chaos: random.Random, *, calm: bool) -> list[Happening]:
    told: list[Happening] = []
    for order in world.orders().values():
        if chaos.random() < 0.5:
            state = chaos.choice([State.FAILED, State.TIMEOUT, State.CANCELLED, State.DENIED])
            told += [end_of(order, good=chaos.random() < 0.7, state=state)] * chaos.randint(1, 2)
    if chaos.random() < 0.5 and (timer := next_timer(world)):
        told.append(timer)
    if not calm and chaos.random() < 0.2:
        asks: list[Happening] = [PauseAsked(), ResumeAsked(), CancelAsked(compensate=chaos.random() < 0.5)]
        told.append(chaos.choice(asks))
    if world.state() is RunState.PAUSED and (calm or chaos.random() < 0.3):
        told.append(ResumeAsked())
    if chaos.random() < 0.1:
        world.now += 20
        told.append(TimerDue())
    chaos.shuffle(told)
    return told
