"""A job that is to be cancelled is not begun again, however its attempt ends. Found by H1 of the simulator (plane 3188, 3450)."""

from __future__ import annotations

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import staged
from holdfast.core.states import State
from holdfast.flow.cancel import cancel
from holdfast.flow.record import EFFECT_UNKNOWN, End


@pytest.mark.parametrize("end", [End.HANDED_BACK, End.FAILED])
@on_virtual_time
async def test_what_is_to_be_cancelled_is_not_begun_again(runtime: VirtualRuntime, end: End) -> None:
    async with staged(runtime) as stage:
        attempt = await stage.begun()
        await cancel(attempt.tenant, attempt.id, "enough", store=stage.inner)

        error = {"code": EFFECT_UNKNOWN, "message": ""} if end is End.FAILED else None
        assert (await stage.complete(attempt, end, error=error)).code == "ok"

        assert (await stage.job(attempt.id)).state is State.CANCELLED
        assert (await stage.complete(attempt, end, error=error)).code == "ok", "said again, answered the same"
