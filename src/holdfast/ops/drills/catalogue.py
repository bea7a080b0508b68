"""Every drill, in the order in which they are run."""

from __future__ import annotations

from holdfast.ops.drills.deciding import approve_reject_race
from holdfast.ops.drills.dispatching import publish_failure, rollback_failure
from holdfast.ops.drills.engine import Drill
from holdfast.ops.drills.locking import lease_storm, stale_release
from holdfast.ops.drills.planes import kill_everything, reconciler_split, snapshot_failover
from holdfast.ops.drills.storing import slow_store, store_outage
from holdfast.ops.drills.workers import kill_mid_effect, pause_worker, redelivery_storm, renewal_outage

DRILLS = (
    Drill(
        name="pause-worker",
        title="A worker is stopped beyond its lease, and goes on afterwards",
        promises=("P1", "P5"),
        hypothesis="Another worker finishes the job. What the first one then writes and says is refused: by the "
        "resource, because its fence is too low, and by the plane, because the attempt is over.",
        play=pause_worker,
        on_staging=True,
    ),
    Drill(
        name="stale-release",
        title="A holder that has lost its lock releases it",
        promises=("P3",),
        hypothesis="Release and renewal with the old token change nothing: the new owner keeps the lock, and nobody else gets it.",
        play=stale_release,
    ),
    Drill(
        name="renewal-outage",
        title="A worker cannot renew its lease any more, while its handler goes on",
        promises=("P2",),
        hypothesis="The handler is stopped before anybody else is given the job: at no moment do two work on it.",
        play=renewal_outage,
        on_staging=True,
    ),
    Drill(
        name="lease-storm",
        title="Failing renewals, an expired lease and stale releases, one upon the other",
        promises=("P1", "P2", "P3"),
        hypothesis="Whoever cannot renew gives up in time; late writes, releases and renewals are all refused; the last owner is undisturbed.",
        play=lease_storm,
    ),
    Drill(
        name="publish-failure",
        title="The bus fails when jobs are handed to workers",
        promises=("P6",),
        hypothesis="Nothing is published before its state is written; a failed publish goes back to SCHEDULED at once, "
        "and costs neither an attempt nor a second run.",
        play=publish_failure,
    ),
    Drill(
        name="rollback-failure",
        title="The bus fails, and then the store, before the publish could be rolled back",
        promises=("P6",),
        hypothesis="The failed rollback is counted; the job is dispatched again within its dispatch timeout, and does not end in a timeout.",
        play=rollback_failure,
    ),
    Drill(
        name="kill-everything",
        title="The plane and all workers are killed, again and again, under load",
        promises=("P4", "P5"),
        hypothesis="Every job that was acknowledged ends, once, whoever was killed in the middle of what.",
        play=kill_everything,
    ),
    Drill(
        name="reconciler-split",
        title="The reconciler is stopped in the middle, another plane takes over, the first one goes on",
        promises=("P7",),
        hypothesis="The jobs of a dead worker are recovered by the other plane, each once, although two believe to be the reconciler.",
        play=reconciler_split,
    ),
    Drill(
        name="snapshot-failover",
        title="The plane that writes the snapshot of the workers is killed",
        promises=("P7",),
        hypothesis="Another plane writes it within 15 s, and work goes on.",
        play=snapshot_failover,
    ),
    Drill(
        name="approve-reject-race",
        title="People approve and reject the same jobs at the same time, through two gateways",
        promises=("P8",),
        hypothesis="Each approval is decided once; what was approved runs once, what was rejected never.",
        play=approve_reject_race,
    ),
    Drill(
        name="redelivery-storm",
        title="Every delivery arrives many times, and is started and ended many times",
        promises=("P5",),
        hypothesis="Each attempt begins once and ends once; what contradicts the first outcome is refused.",
        play=redelivery_storm,
        on_staging=True,
    ),
    Drill(
        name="kill-mid-effect",
        title="A worker is killed after a payment, before it heard that it was made",
        promises=("P9",),
        hypothesis="Nobody pays a second time: the effect is unknown, on the worklist, and waits for a person.",
        play=kill_mid_effect,
        on_staging=True,
    ),
    Drill(
        name="store-outage",
        title="The store is away for a while, under load",
        promises=("P4", "P5"),
        hypothesis="Nothing is acknowledged that is not stored; everything that was acknowledged ends, once.",
        play=store_outage,
    ),
    Drill(
        name="slow-store",
        title="The store is slow for a while, under load",
        promises=("P4", "P5"),
        hypothesis="It takes longer, and nothing is lost or done twice.",
        play=slow_store,
    ),
)


def find_drill(name: str) -> Drill | None:
    return next((drill for drill in DRILLS if drill.name == name), None)
