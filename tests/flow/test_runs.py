"""Runs as they are started and advanced: what happens together, what is done once, and what is refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time
from msgspec.structs import replace

from flow.faulty_store import Fault
from flow.run_stage import RunStage, chain, fan_in, runs_staged
from flow.stage import ACME
from flow.telling import undelivered
from holdfast import workflow_engine
from holdfast.core.job import Tenant
from holdfast.core.record import Kind
from holdfast.core.run import RunState
from holdfast.core.run_words import NewRun
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.core.workflow import Definition, definition_of
from holdfast.errors import HoldfastError, Invalid, KeyReused, NotFound, TooMany
from holdfast.flow import workflows
from holdfast.flow.record import End
from holdfast.flow.run_draft import RunDraft
from holdfast.flow.run_steps import REMEMBERED_BYTES, REMEMBERED_MAX
from holdfast.flow.run_tools import Tools
from holdfast.flow.runs import RunOrder
from holdfast.ports import RecordChange, Transaction

GLOBEX = Tenant("globex")
ECHO = {
    "name": "echo",
    "input_schema": {"type": "object", "properties": {"n": {"type": "integer", "default": 7}}},
    "output": {"said": "${steps.say.output}"},
    "steps": [{"id": "say", "kind": "job", "topic": "work", "payload": {"n": "${input.n}"}}],
}


@on_virtual_time
async def test_a_chain_runs_to_its_end_by_itself(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("ten", 10))
        async with staged.going():
            ended = await staged.wait_ended(run.id, within_s=60)

        assert ended.state is RunState.SUCCEEDED
        assert set((await staged.states(run.id)).values()) == {"succeeded"}
        assert await staged.results() == 0
        assert staged.first.counted("runs_started") == 1
        assert staged.first.counted("runs_ended", state="succeeded") == 1


@on_virtual_time
async def test_input_and_output_go_through_their_templates(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(ECHO, {})
        job = await staged.job_of(run.id, "say")
        assert msgspec.json.decode(job.payload) == {"n": 7}
        assert (job.run, job.step) == (run.id, "say")
        await staged.do(run.id, "say", result=b'"hello"')
        await staged.first.tick()

        ended = await staged.run(run.id)
        assert msgspec.json.decode(ended.output) == {"said": "hello"}


@pytest.mark.parametrize("word", ["\0", "x" * 5000], ids=["NUL", "too long"])
@pytest.mark.parametrize("field", ["labels", "session"])
@undelivered
@on_virtual_time
async def test_word_that_no_job_may_have_fails_the_step_on_every_store(
    runtime: VirtualRuntime, field: str, word: str
) -> None:
    """Some stores could keep it, and on the others the run would try to for ever."""
    filled = {"labels": {"of": "${input.word}"}} if field == "labels" else {"session": "${input.word}"}
    definition = {"name": "odd", "steps": [{"id": "say", "kind": "job", "topic": "work", **filled}]}
    async with runs_staged(runtime) as staged:
        run = await staged.start(definition, {"word": word})
        await staged.first.tick()

        ended = await staged.run(run.id)
        assert ended.state is RunState.FAILED
        [step] = (await staged.steps(run.id)).values()
        assert step.error is not None
        assert step.error["code"] == "expression-failed"
        assert "without NUL" in step.error["message"]


@undelivered
@on_virtual_time
async def test_input_that_does_not_fit_starts_nothing(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        with pytest.raises(Invalid):
            await staged.start(ECHO, {"n": "seven"})
        with pytest.raises(NotFound):
            await staged.order("nowhere")

        assert await staged.stage.inner.list_records(Kind.RUN, ACME, limit=10) == []
        assert await staged.stage.inner.count_jobs() == {}


@on_virtual_time
async def test_many_results_of_a_run_are_one_advance(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(fan_in("wide", 6))
        for n in range(1, 7):
            await staged.do(run.id, f"a{n}")
        before = staged.stage.store.calls.get("transact", 0)
        await staged.first.tick()

        assert (await staged.run(run.id)).version == 2
        assert staged.stage.store.calls["transact"] == before + 1
        assert (await staged.states(run.id))["last"] == "running"


@on_virtual_time
async def test_many_runs_advance_in_one_call_of_the_store(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        runs = [(await staged.order("two")).run for _ in range(8)]
        for run in runs:
            await staged.do(run.id, "s1")
        before = staged.stage.store.calls.get("transact", 0)
        await staged.first.tick()

        assert staged.stage.store.calls["transact"] == before + 1
        assert {(await staged.states(run.id))["s2"] for run in runs} == {"running"}


@on_virtual_time
async def test_an_advance_in_doubt_is_told_once(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        await staged.do(run.id, "s1")
        staged.stage.store.fault("transact", Fault.LOSE_REPLY, times=1)
        with pytest.raises(HoldfastError):
            await staged.first.tick()
        await staged.first.tick()

        assert (await staged.run(run.id)).version == 2
        assert (await staged.steps(run.id))["s2"].attempt == 1
        assert (await staged.stage.inner.count_jobs())[ACME, State.SCHEDULED] == 1


@on_virtual_time
async def test_an_advance_that_is_known_to_have_failed_comes_round_again(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        async with staged.going():
            staged.stage.store.fault("transact", Fault.FAIL, times=3)
            assert (await staged.wait_ended(run.id, within_s=60)).state is RunState.SUCCEEDED


# -- keys and admission ---------------------------------------------------------------------------------


@undelivered
@on_virtual_time
async def test_the_same_key_gives_the_same_run(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(ECHO)
        first = await staged.order("echo", {"n": 1}, key="k")
        again = await staged.order("echo", {"n": 1}, key="k")

        assert not first.repeated
        assert again.repeated
        assert again.run.id == first.run.id
        with pytest.raises(KeyReused, match=first.run.id):
            await staged.order("echo", {"n": 2}, key="k")


@undelivered
@on_virtual_time
async def test_keys_are_per_tenant(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("one", 1))
        await staged.first.workflows.apply(GLOBEX, await newest(staged, "one"))
        ours = await staged.order("one", key="k")
        theirs = await staged.order("one", tenant=GLOBEX, key="k")

        assert ours.run.id != theirs.run.id
        with pytest.raises(NotFound):
            await staged.first.runs.get(GLOBEX, ours.run.id)


@undelivered
@on_virtual_time
async def test_one_key_from_many_callers_at_once_starts_one_run(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("one", 1))
        _, other = await staged.another("E2")
        order = RunOrder(tenant=ACME, workflow="one", key="k")
        answers = await asyncio.gather(
            *(runs.start(order) for runs in (staged.first.runs, other.runs) for _ in range(5))
        )

        assert len({answer.run.id for answer in answers}) == 1
        assert [answer.repeated for answer in answers].count(False) == 1
        assert len(await staged.stage.inner.list_records(Kind.RUN, ACME, limit=10)) == 1


@on_virtual_time
async def test_a_tenant_has_no_more_live_runs_than_it_may(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, live_runs_max=2) as staged:
        await staged.apply(chain("one", 1))
        _, other = await staged.another("E2")
        order = RunOrder(tenant=ACME, workflow="one")
        answers = await asyncio.gather(
            *(runs.start(order) for runs in (staged.first.runs, other.runs) for _ in range(4)), return_exceptions=True
        )
        started = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, TooMany)]
        assert (len(started), len(refused)) == (2, 6)
        assert all(error.retry_after_s > 0 for error in refused)

        await staged.do(started[0].run.id, "s1")
        await staged.first.tick()
        assert (await staged.order("one")).run.state is RunState.RUNNING


# -- what cannot be carried out -------------------------------------------------------------------------


@on_virtual_time
async def test_a_topic_that_nobody_declared_fails_the_step(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, topics=Topics((Topic(name="work"),), closed=True)) as staged:
        definition = chain("two", 2)
        definition["steps"][1]["topic"] = "elsewhere"
        run = await staged.start(definition)
        await staged.do(run.id, "s1")
        await staged.first.tick()

        assert (await staged.run(run.id)).state is RunState.FAILED
        failed = (await staged.steps(run.id))["s2"]
        assert failed.error is not None
        assert (failed.state, failed.error["code"]) == ("failed", "invalid")


async def spoil(staged: RunStage, run_id: str) -> None:
    """Nobody can read the run any more."""
    record = await staged.stage.inner.get_record(Kind.RUN, ACME, run_id)
    spoilt = replace(record, version=record.version + 1, body=b"{}")
    change = Transaction(records=[RecordChange(after=spoilt, replaces=record.version)])
    assert await staged.stage.inner.transact([change]) == [True]


@on_virtual_time
async def test_results_of_a_run_that_cannot_go_on_hide_nobody_elses(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_engine, "LOOK_MAX", 2)
    async with runs_staged(runtime) as staged:
        spoilt, well = await staged.start(fan_in("wide", 3)), await staged.start(chain("two", 2))
        for n in (1, 2, 3):
            await staged.do(spoilt.id, f"a{n}")
        await spoil(staged, spoilt.id)
        await asyncio.sleep(1)  # the others are longer overdue
        await staged.do(well.id, "s1")
        for _ in range(4):
            await staged.first.tick()

        assert (await staged.states(well.id))["s2"] == "running"


@on_virtual_time
async def test_a_run_that_cannot_go_on_is_not_asked_for_again_at_once(
    runtime: VirtualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        await staged.do(run.id, "s1")
        await spoil(staged, run.id)
        async with staged.going():
            await asyncio.sleep(10)

        failures = [record for record in caplog.records if record.message == "run.advance_failed"]
        assert 8 <= len(failures) <= 11


@undelivered
@on_virtual_time
async def test_definitions_are_kept_compiled_up_to_a_number_of_steps(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "STEPS_KEPT_MAX", 5)
    async with runs_staged(runtime) as staged:
        for name in ("a", "b", "c"):
            await staged.apply(chain(name, 2))
        kept = staged.first.workflows
        a, b = await kept.graph(ACME, "a", 1), await kept.graph(ACME, "b", 1)
        assert await kept.graph(ACME, "a", 1) is a
        await kept.graph(ACME, "c", 1)  # six steps are too many: `b` was asked for the longest ago

        assert await kept.graph(ACME, "a", 1) is a
        assert await kept.graph(ACME, "b", 1) is not b


@undelivered
@on_virtual_time
async def test_little_of_a_run_is_remembered_however_wide_it_is(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        step = {"kind": "job", "topic": "work"}
        await staged.apply(
            {"name": "wide", "steps": [{"id": "all", "kind": "for_each", "items": "input", "step": step}]}
        )
        engine, stage = staged.first, staged.stage
        tools = Tools(
            store=stage.typed_store,
            workflows=engine.workflows,
            submitter=stage.submitter,
            runtime=stage.runtime,
            live_runs_max=1000,
        )
        given = ["x" * REMEMBERED_BYTES, *range(200)]
        draft = RunDraft(tools, ACME)
        graph = await engine.workflows.graph(ACME, "wide", 1)
        await draft.begin(graph, NewRun(id="r", tenant=ACME, revision=1, input=given))

        assert len(draft.steps_after) == REMEMBERED_MAX
        assert "all[0]" not in draft.steps_after


@on_virtual_time
async def test_a_result_of_a_run_that_is_gone_is_taken_away(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.stage.begun(run="nowhere", step="s1")
        [job] = await staged.stage.inner.list_in_hand("w1")
        await staged.stage.complete(job)
        assert await staged.results() == 1
        await staged.first.tick()
        assert await staged.results() == 0


# -- the reconciler -------------------------------------------------------------------------------------


@undelivered
@on_virtual_time
async def test_a_run_ends_at_its_deadline(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("slow", 2, timeout_s=30))
        async with staged.going(workers=0):
            ended = await staged.wait_ended(run.id, within_s=40)

        assert ended.state is RunState.TIMEOUT
        assert await staged.results() == 0


@undelivered
@on_virtual_time
async def test_the_deadline_of_a_run_that_waits_for_nobody_is_kept_by_the_reconciler(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        delay = {"id": "wait", "kind": "delay", "seconds": 1000}
        run = await staged.start({"name": "slow", "timeout_s": 30, "steps": [delay]})
        async with staged.going(workers=0):
            ended = await staged.wait_ended(run.id, within_s=40)

        assert ended.state is RunState.TIMEOUT
        assert staged.first.counted("runs_recovered", reason="deadline-passed") == 1


@pytest.mark.usefixtures("unhurried")
@on_virtual_time
async def test_a_result_that_was_lost_is_found_by_the_reconciler(runtime: VirtualRuntime) -> None:
    """As after a store was put together from two backups: the job has ended, and its result is not there."""
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        await staged.do(run.id, "s1")
        [result] = await staged.stage.inner.list_due(Kind.RESULT, limit=10)
        taken = RecordChange(after=result, replaces=result.version, remove=True)
        assert await staged.stage.inner.transact([Transaction(records=[taken])]) == [True]
        async with staged.going():
            ended = await staged.wait_ended(run.id, within_s=1000)

        assert ended.state is RunState.SUCCEEDED
        assert staged.first.counted("runs_recovered", reason="nothing-heard") == 1


async def newest(staged: RunStage, name: str) -> Definition:
    return definition_of(await staged.first.workflows.get(ACME, name))


@on_virtual_time
async def test_steps_that_fail_are_tried_again_and_denied_ones_are_not(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, topics=Topics((Topic(name="*", max_attempts=1),))) as staged:
        definition = chain("one", 1)
        definition["steps"][0]["retry"] = {"max_attempts": 2, "first_s": 5}
        run = await staged.start(definition)
        await staged.do(run.id, "s1", End.FAILED, error={"code": "no", "message": "not today"})
        await staged.first.tick()
        assert await staged.states(run.id) == {"s1": "retrying"}
        async with staged.going():
            ended = await staged.wait_ended(run.id, within_s=60)

        assert ended.state is RunState.SUCCEEDED
        assert (await staged.steps(run.id))["s1"].attempt == 2
