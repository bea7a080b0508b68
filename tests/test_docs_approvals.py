"""The pages on approvals have every field that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from holdfast.api import approvals
from holdfast.core import rules

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


@pytest.mark.parametrize(
    ("page", "section", "shape"),
    [
        ("approvals.md", "# Approvals", approvals.ApprovalView),
        ("approvals.md", "## A word", approvals.WordView),
        ("approvals.md", "## The verdict", approvals.VerdictView),
        ("approvals.md", "## What was asked for", approvals.OriginalView),
        ("policy.md", "### `approval`", rules.Approval),
    ],
)
def test_every_field_has_its_row(page: str, section: str, shape: type[msgspec.Struct]) -> None:
    [text] = re.findall(rf"^{section}\n(.*?)(?=^#|\Z)", (REFERENCE / page).read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(shape.__struct_fields__)
