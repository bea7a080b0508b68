"""What a plane counts, read from its `/metrics`."""

from __future__ import annotations

import re
import urllib.request
from asyncio import to_thread

from holdfast.ops.drills.stage import Stage


async def read_metric(stage: Stage, url: str, name: str, label: str = "") -> float:
    """The value of `holdfast_<name>`, with that label if one is named; 0 if it has none yet or nobody answers."""
    try:
        text = await to_thread(_scrape, url, stage.site.api_key)
    except OSError:
        return 0.0
    labels = rf"{{[^}}]*{re.escape(label)}[^}}]*}}" if label else ""
    found = re.search(rf"^holdfast_{name}{labels} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _scrape(url: str, api_key: str) -> str:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    asked = urllib.request.Request(f"{url}/metrics", headers=headers)  # noqa: S310  (the URL of our own plane)
    with urllib.request.urlopen(asked, timeout=10) as page:  # noqa: S310
        text: str = page.read().decode()
        return text
