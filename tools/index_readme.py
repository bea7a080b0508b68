"""The README as a package index shows it. There its relative links lead nowhere, so they become their words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)[^)]+\)")
_WHERE = "\nThe pages that are named here are in `docs/` of the source distribution.\n"


class IndexReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _RELATIVE.sub(r"\1", text) + _WHERE}
