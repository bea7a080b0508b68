"""A mutant: the product with one thing done wrong, for as long as a story lasts.

Mutants show that the checkers can fail. They live in the test kit alone; nothing in the product
knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Mutant:
    name: str
    promise: str
    """What is expected to break, first of all."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Dotted name → what stands there instead."""

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, wrong in self.changes.items():
                stack.enter_context(patch(target, wrong))
            yield
