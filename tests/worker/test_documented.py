"""`docs/reference/workers.md` says what there is, and nothing else."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import holdfast.worker as public
from holdfast.worker import Options
from holdfast.worker.lease import AttemptLease

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/workers.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def first_column(section: str) -> set[str]:
    cells = re.findall(r"^\| ([^|]+) \|", SECTIONS[section], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_every_option_is_described_with_its_default() -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", SECTIONS["Options"], re.MULTILINE))

    assert set(described) == {option.name for option in fields(Options)}
    for name, value in Options().described().items():
        assert described[name].strip() == (f"{value:g}" if isinstance(value, float | int) else str(value or "none"))


def test_every_event_of_the_log_is_described() -> None:
    logged = {
        (event, level.upper().replace("EXCEPTION", "ERROR"))
        for module in (ROOT / "src/holdfast/worker").glob("*.py")
        for level, event in re.findall(r'logger\.(\w+)\(\s*"([a-z_.]+)', module.read_text())
    }
    described = {
        (event, level)
        for events, level in re.findall(r"^\| (`[^|]+`) \| ([A-Z]+) \|", SECTIONS["Log"], re.MULTILINE)
        for event in re.findall(r"`([\w.]+)`", events)
    }

    assert logged == described


def test_every_error_is_described() -> None:
    raised = {
        name
        for name in public.__all__
        if isinstance(cls := getattr(public, name), type) and issubclass(cls, BaseException)
    }

    # BrokenWorker is no handler's business: it says at the start why a worker cannot be one.
    assert raised - {"BrokenWorker"} == first_column("What a handler may raise, and gets raised") & set(public.__all__)


def test_the_times_are_those_of_the_code() -> None:
    lease = AttemptLease(lease_s=12.0, running_timeout_s=900.0, began_at=0.0)

    assert (lease.look_at(), lease.patience_s) == (12.0 / 3, 12.0 / 6)
    assert (lease.trusted_until, lease.last_moment) == pytest.approx((0.9 * 12.0, 0.95 * 12.0))
