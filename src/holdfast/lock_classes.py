"""Every lock the plane takes, by the class that the part which takes it has declared."""

from __future__ import annotations

from holdfast.flow.approve import APPROVAL
from holdfast.flow.dispatch import JOB
from holdfast.flow.kept_locks import ADMISSION, RUN
from holdfast.pruner import WINDOW as PRUNER_WINDOW
from holdfast.reconciler import WINDOW as RECONCILER_WINDOW
from holdfast.relay import WINDOW as RELAY_WINDOW
from holdfast.replayer import WINDOW as REPLAYER_WINDOW
from holdfast.snapshot import WRITER
from holdfast.timetable import WINDOW as TIMETABLE_WINDOW
from holdfast.workflow_engine import WINDOW as RUN_RECONCILER_WINDOW

CLASSES = (
    JOB,
    APPROVAL,
    RUN,
    ADMISSION,
    RECONCILER_WINDOW,
    REPLAYER_WINDOW,
    RELAY_WINDOW,
    RUN_RECONCILER_WINDOW,
    PRUNER_WINDOW,
    TIMETABLE_WINDOW,
    WRITER,
)
"""A key that none of them declares is an error."""
