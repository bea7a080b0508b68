"""What `holdfast.telemetry` promises beyond counting: that it stays small whatever callers invent."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import BusUnavailable
from holdfast.telemetry import OTHER, UNDECLARED_MAX, Telemetry
from plane.jobs import a_job


def counted(telemetry: Telemetry, metric: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"holdfast_{metric}", labels)


def series(telemetry: Telemetry) -> int:
    return generate_latest(telemetry.registry).count(b"\n")


def test_topics_that_callers_invent_share_one_label_after_the_first_hundred() -> None:
    telemetry = Telemetry()
    for n in range(UNDECLARED_MAX):
        telemetry.job_submitted(a_job(topic=f"first-{n}"))
    telemetry.job_submitted(a_job(topic="one-more"))
    grown = series(telemetry)
    for n in range(1000):
        job = a_job(topic=f"later-{n}")
        telemetry.job_submitted(job)
        telemetry.job_dispatched(job, waited_s=0.1)
        telemetry.rolled_back(job, error=OSError())
        telemetry.rollback_failed(job, error=OSError())
        telemetry.attempt_ended(job, a_job(topic=job.topic, state=State.SUCCEEDED))
        telemetry.job_recovered(job, a_job(topic=job.topic, state=State.TIMEOUT), reason="lease-expired")
        telemetry.job_ended(a_job(topic=job.topic, state=State.TIMEOUT))
    telemetry.job_submitted(a_job(topic="first-7"))

    assert series(telemetry) <= grown + 10  # those that have no topic
    assert counted(telemetry, "jobs_submitted_total", topic="first-7") == 2
    assert counted(telemetry, "jobs_submitted_total", topic=OTHER) == 1001
    assert counted(telemetry, "dispatch_wait_seconds_count", topic=OTHER) == 1000
    assert counted(telemetry, "jobs_ended_total", topic=OTHER, state="TIMEOUT") == 1000


def test_line_about_a_dispatch_that_came_to_nothing_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the format: a formatter that shows the message alone is the usual one."""
    Telemetry().rolled_back(a_job(), error=BusUnavailable("NATS at a", "maximum messages exceeded", applied=False))
    Telemetry().relay_failed(error=BusUnavailable("NATS at a", "there is no connection", applied=False))

    assert "maximum messages exceeded" in caplog.messages[0]
    assert "there is no connection" in caplog.messages[1]


def test_declared_topic_keeps_its_label_however_late_it_comes() -> None:
    telemetry = Telemetry(Topics((Topic(name="invoice"), Topic(name="mail.*"))))
    assert counted(telemetry, "jobs_submitted_total", topic="invoice") == 0
    assert counted(telemetry, "jobs_submitted_total", topic="mail.*") is None
    for n in range(UNDECLARED_MAX + 1):
        telemetry.job_submitted(a_job(topic=f"mail.{n}"))
    telemetry.job_submitted(a_job(topic="invoice"))

    assert counted(telemetry, "jobs_submitted_total", topic="invoice") == 1
    assert counted(telemetry, "jobs_submitted_total", topic=f"mail.{UNDECLARED_MAX - 1}") == 1
    assert counted(telemetry, "jobs_submitted_total", topic=OTHER) == 1


@pytest.mark.parametrize("ended", [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMEOUT, State.DENIED])
def test_every_end_of_a_job_is_counted_from_zero(ended: State) -> None:
    telemetry = Telemetry()
    telemetry.job_submitted(a_job(topic="t"))
    before = counted(telemetry, "jobs_ended_total", topic="t", state=ended)
    telemetry.job_ended(a_job(topic="t", state=ended))

    assert (before, counted(telemetry, "jobs_ended_total", topic="t", state=ended)) == (0, 1)
