"""Many people decide at once, through two gateways: each job is decided once, and everybody is told by whom."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx2

from gateway.conftest import serving
from gateway.test_approvals import publish

JOBS, PAIRS = 50, 500
RULES: dict[str, Any] = {
    "format": 1,
    "default": {"action": "allow"},
    "rules": [{"name": "payouts", "match": {"topic": "pay"}, "action": "require_approval"}],
}


async def decide(http: httpx2.AsyncClient, approval: str, decision: str, by: str) -> tuple[httpx2.Response, int]:
    """The answer, and how often somebody else had the lock for too long. Who is told to come back does."""
    busy = 0
    while True:
        body = {"decision": decision, "comment": f"{by} says so"}
        try:
            response = await http.post(f"/v1/approvals/{approval}:decide", json=body, headers={"holdfast-actor": by})
        except httpx2.ReadError:
            # On a slow machine a gateway hangs up on a connection as it is used again. The same again is answered the same.
            continue
        if response.status_code != 423:
            return response, busy
        busy += 1
        await asyncio.sleep(int(response.headers["retry-after"]))


async def test_500_pairs_on_50_jobs_through_two_gateways_decide_each_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        await publish(first, RULES)
        async with serving(tmp_path) as second:
            for n in range(JOBS):
                await first.client.submit("pay", {"n": n})
            asked = (await first.client.approvals(limit=JOBS)).items
            assert len(asked) == JOBS
            # A connection is not used again for so long that its other end may be hanging up.
            limits = httpx2.Limits(max_connections=200, keepalive_expiry=1.0)
            async with (
                httpx2.AsyncClient(base_url=first.url, trust_env=False, timeout=60, limits=limits) as one,
                httpx2.AsyncClient(base_url=second.url, trust_env=False, timeout=60, limits=limits) as other,
            ):
                said: list[tuple[str, str, str]] = []
                asking = []
                for n in range(PAIRS):
                    approval = asked[n % JOBS].id
                    gateways = (one, other) if n % 2 else (other, one)
                    for http, decision in zip(gateways, ("approve", "reject"), strict=True):
                        by = f"{decision}r-{n}"
                        said.append((approval, decision, by))
                        asking.append(decide(http, approval, decision, by))
                answers = await asyncio.gather(*asking)

            winners: dict[str, list[tuple[str, str]]] = defaultdict(list)
            told: dict[str, Counter[tuple[Any, Any]]] = defaultdict(Counter)
            for (approval, decision, by), (response, _) in zip(said, answers, strict=True):
                if response.status_code == 200:
                    winners[approval].append((by, decision))
                else:
                    problem = response.json()
                    assert (response.status_code, problem["code"]) == (409, "already-decided"), response.text
                    told[approval][problem["decided_by"], problem["decision"]] += 1
            assert len(winners) == JOBS
            for approval, winning in winners.items():
                [winner] = winning
                assert told[approval] == {winner: 2 * PAIRS // JOBS - 1}
                kept = await second.client.approval(approval)
                assert kept.verdict is not None
                assert (kept.verdict.by, kept.verdict.decision) == winner
                state = "SCHEDULED" if winner[1] == "approve" else "DENIED"
                assert (await second.client.get(kept.job_id)).state == state
            assert (await first.client.locks(family="approval")).items == []
