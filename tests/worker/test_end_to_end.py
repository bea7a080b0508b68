"""The worker against the whole plane: a real store, a real gateway on a socket, real child processes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from worker_plane import TASKS, Client, connected, marks, plane, wait_marked, way

from holdfast.worker import serving


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with plane(tmp_path) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with connected(url) as client:
        yield client


@pytest.mark.parametrize("topic", ["echo.async", "echo.thread"])
async def test_handler_in_the_worker_returns_its_result(url: str, client: Client, topic: str) -> None:
    async with serving(TASKS, url=url, slots=2):
        job = await client.run(topic, {"n": 1})

    assert (job["state"], job["result"], job["attempts"]) == ("SUCCEEDED", {"n": 1}, 1)


async def test_function_in_a_thread_may_run_a_loop_of_its_own(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("nested.thread")

    assert (job["state"], job["progress"]) == ("SUCCEEDED", "ran")


@pytest.mark.parametrize("topic", ["echo", "echo.sync"])
async def test_handler_in_a_child_returns_its_result(url: str, client: Client, topic: str) -> None:
    async with serving(TASKS, url=url, slots=1):
        first, second = await client.run(topic, [1]), await client.run(topic, [2])

    assert (first["result"]["payload"], second["result"]["payload"]) == ([1], [2])
    assert first["result"]["pid"] == second["result"]["pid"]  # the child is used again


async def test_family_and_progress(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        assert (await client.run("family.of.one"))["result"] == "family.of.one"
        assert (await client.run("progress"))["progress"] == {"step": 1}
        assert (await client.run("progress.sync"))["progress"] == {"step": 2}


_THREAD_MAY_EXIT = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.mark.parametrize(
    ("topic", "code", "attempts"),
    [
        ("raise", "KeyError", 2),
        ("exit", "SystemExit", 2),
        ("exit.async", "SystemExit", 2),
        ("exit.coroutine", "SystemExit", 2),
        ("exit.thread", "SystemExit", 2),
        pytest.param("exit.task.thread", "handler-exited", 2, marks=_THREAD_MAY_EXIT),
        ("cancel-itself.async", "handler-cancelled", 2),
        ("fatal", "Fatal", 1),
        ("not-json", "result-not-json", 1),
    ],
)
async def test_failures_are_told_by_class_and_retried_unless_fatal(
    url: str, client: Client, topic: str, code: str, attempts: int
) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run(topic, max_attempts=2)

    assert (job["state"], job["error"]["code"], job["attempts"]) == ("FAILED", code, attempts)


@pytest.mark.parametrize(
    ("topic", "evidence"),
    [
        ("raise", "in raise_\n    raise KeyError(\"no such customer\")\nKeyError: 'no such customer'"),
        ("undecodable.async", "FileNotFoundError: report-?.csv"),
        ("wordless.thread", "Wordless"),
        ("not-json", "result-not-json"),
        ("fatal", "\nFatal: never again (tasks.py:"),
        ("long-words", "in long_words"),
    ],
)
async def test_the_log_of_the_worker_has_the_traceback_of_the_handler_alone(
    url: str, client: Client, caplog: pytest.LogCaptureFixture, topic: str, evidence: str
) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run(topic, max_attempts=1)
        [failed] = [record.getMessage() for record in caplog.records if "attempt.failed" in record.getMessage()]

    assert f"job_id={job['id']} topic={topic} attempt=1/1\n" in failed
    assert evidence in failed
    assert "holdfast/worker" not in failed
    assert len(failed) < 10_000


async def test_a_message_that_is_cut_keeps_the_line_it_came_from(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("long-words", max_attempts=1)

    assert job["error"]["message"].startswith("xxx")
    assert re.search(r"x \(tasks.py:\d+\)$", job["error"]["message"])


async def test_a_result_that_is_no_number_is_not_kept_as_nothing(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("not-json", "nan")

    assert (job["state"], job["error"]["code"], job["attempts"]) == ("FAILED", "result-not-json", 1)


async def test_what_no_json_can_carry_fails_its_job_and_nothing_else(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        topics = ["undecodable", "undecodable.thread", "undecodable.async"]
        errors = [(await client.run(topic, max_attempts=1))["error"] for topic in topics]
        results = [await client.run(topic, "return", max_attempts=1) for topic in topics[:2]]
        wordless = await client.run("wordless.thread", max_attempts=1)
        echo = await client.run("echo.thread", 1)

    assert [error["code"] for error in errors] == ["FileNotFoundError"] * 3
    assert all(error["message"].startswith("report-?.csv (tasks.py:") for error in errors)
    assert [job["error"]["code"] for job in results] == ["result-not-json"] * 2
    assert wordless["error"]["code"] == "Wordless"
    assert echo["result"] == 1  # the only slot is free, in a worker that lives


async def test_child_that_dies_is_seen_at_once_and_its_job_runs_again(url: str, client: Client, tmp_path: Path) -> None:
    """With a lease of a minute: it is not waited for."""
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=2):
        job_id = await client.submit("long-lease.die-once", {"file": str(file)})
        job = await client.wait_ended(job_id)
        events = await client.events(job_id)

    assert (job["state"], job["result"]) == ("SUCCEEDED", 2)
    at = dict(reversed(events))  # the first of each kind
    assert at["job.retried"] - at["job.started"] < 10


@pytest.mark.parametrize(
    ("topic", "last"),
    [("sleep", "cancelled"), ("sleep.sync", "stopped"), ("sleep.async", "ended"), ("sleep.thread", "began")],
)
async def test_cancel_reaches_the_handler(url: str, client: Client, tmp_path: Path, topic: str, last: str) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit(topic, {"file": str(file), "seconds": 60})
        await wait_marked(file, "began")
        await client.cancel(job_id)
        job = await client.wait_ended(job_id, within_s=5)

    assert job["state"] == "CANCELLED"
    assert marks(file)[-1][0] == last


async def test_what_a_handler_does_after_it_was_told_to_stop_is_heard(url: str, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit("refuse-to-stop.async", {"file": str(file)})
        await wait_marked(file, "began")
        await client.cancel(job_id)
        job = await client.wait_ended(job_id, within_s=5)
        echo = await client.run("echo.async", 1)

    assert (job["state"], job["result"], job["progress"]) == ("SUCCEEDED", "done", "all")
    assert echo["state"] == "SUCCEEDED"


async def test_a_handler_that_cancels_itself_as_it_returns_has_returned(url: str, client: Client) -> None:
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("cancel-itself-at-the-end.async")

    assert (job["state"], job["result"], job["attempts"], job["progress"]) == ("SUCCEEDED", "done", 1, "all")


async def test_cancel_does_not_wait_for_a_renewal(url: str, client: Client, tmp_path: Path) -> None:
    """With a lease of a minute and every slot taken."""
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit("long-lease.sleep", {"file": str(file), "seconds": 60})
        await wait_marked(file, "began")
        await client.cancel(job_id)
        job = await client.wait_ended(job_id, within_s=3)

    assert job["state"] == "CANCELLED"


async def test_claim_whose_reply_was_lost_does_not_cost_a_lease(url: str, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with way(url, lose=(b'"job_id"', b"/v1/work/claim")) as (lossy, lossy_way):
        async with serving(TASKS, url=lossy, slots=1):
            job_id = await client.submit("long-lease.sleep", {"file": str(file), "seconds": 0})
            job = await client.wait_ended(job_id, within_s=5)

    assert lossy_way.lose is None  # it did happen
    assert (job["state"], job["attempts"], job["schedulings"]) == ("SUCCEEDED", 1, 1)
    assert [what for what, _, _ in marks(file)] == ["began", "finished"]


async def test_handler_that_ignores_a_cancel_is_killed_after_its_grace(
    url: str, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1, cancel_grace_s=0.3):
        job_id = await client.submit("stubborn", {"file": str(file), "seconds": 60})
        await wait_marked(file, "began")
        await client.cancel(job_id)
        job = await client.wait_ended(job_id, within_s=5)

    assert job["state"] == "CANCELLED"


async def test_running_timeout_ends_the_handler(url: str, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("sleep.brief", {"file": str(file), "seconds": 60})

    # The same end as if the reconciler had been first.
    assert (job["state"], job["error"]["code"], job["attempts"]) == ("TIMEOUT", "running-timeout", 1)
    assert "finished" not in file.read_text()


@pytest.mark.parametrize("topic", ["charge", "charge.sync"])
async def test_effect_is_remembered_by_the_next_attempt(url: str, client: Client, tmp_path: Path, topic: str) -> None:
    file = tmp_path / "ledger"
    async with serving(TASKS, url=url, slots=1):
        job = await client.run(topic, {"file": str(file)})

    assert (job["state"], job["attempts"], job["result"]["amount"]) == ("SUCCEEDED", 2, 42)
    [line] = file.read_text().splitlines()
    assert line == f"charged 42 {job['result']['key']}"


async def test_effect_whose_result_cannot_be_kept_is_done_once_all_the_same(
    url: str, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "ledger"
    async with serving(TASKS, url=url, slots=1):
        job = await client.run("charge.unkeepable", {"file": str(file)}, risk="low")
        effects = await client.effects(job["id"])

    assert (job["state"], job["attempts"], job["result"]) == ("SUCCEEDED", 2, [None] * 3)
    assert [(effect["state"], effect["result"]) for effect in effects] == [("committed", None)] * 3
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("topic", ["charge.declined", "charge.declined.sync"])
async def test_effect_that_did_not_happen_for_certain_is_tried_again_without_a_person(
    url: str, client: Client, tmp_path: Path, topic: str
) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit(topic, {"file": str(file)}, risk="high")
        job = await client.wait_ended(job_id)
        [retried] = await client.details(job_id, "job.retried")
        [effect] = await client.effects(job_id)

    assert (retried["error"]["code"], job["state"], job["result"], job["attempts"]) == (
        "PermissionError",
        "SUCCEEDED",
        "paid",
        2,
    )
    assert (effect["state"], len(marks(file))) == ("committed", 2)


@pytest.mark.parametrize("topic", ["charge.killed", "charge.insistent"])
async def test_effect_that_nobody_knows_of_waits_for_a_person_and_is_not_repeated(
    url: str, client: Client, tmp_path: Path, topic: str
) -> None:
    file = tmp_path / "ledger"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit(topic, {"file": str(file)})
        await client.wait_event(job_id, "job.parked")
        await client.resolve(job_id, "charge", state="committed", result={"amount": 42})
        job = await client.wait_ended(job_id)

    assert (job["state"], job["result"]) == ("SUCCEEDED", {"amount": 42})
    assert len(file.read_text().splitlines()) == 1


async def test_cancel_waits_until_an_effect_is_recorded(url: str, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "marks"
    async with serving(TASKS, url=url, slots=1):
        job_id = await client.submit("charge.cancelled", {"file": str(file)})
        await wait_marked(file, "began")
        await client.cancel(job_id)
        job = await client.wait_ended(job_id, within_s=5)
        effects = await client.effects(job_id)

    assert job["state"] == "CANCELLED"
    assert [(e["state"], e["result"]) for e in effects] == [("committed", 42)]


async def test_drain_finishes_what_runs_and_hands_back_the_rest(url: str, client: Client, tmp_path: Path) -> None:
    brief, long = tmp_path / "brief", tmp_path / "long"
    async with serving(TASKS, url=url, slots=2, drain_s=1.0):
        finished = await client.submit("sleep", {"file": str(brief), "seconds": 0.5})
        handed_back = await client.submit("sleep", {"file": str(long), "seconds": 60})
        await wait_marked(brief, "began")
        await wait_marked(long, "began")

    done, waiting = await client.get(finished), await client.get(handed_back)
    assert done["state"] == "SUCCEEDED"
    assert (waiting["state"], waiting["attempts"]) == ("SCHEDULED", 0)
