"""All moments of a query at which something may happen to it."""

from __future__ import annotations

from assent.protocol.step import Step, When

MOMENTS = [
    (when, step)
    for step in Step
    for when in When
    # Within a step there is a moment where it has parts; writing ends where pre-commit begins.
    if (when is not When.DURING or step in (Step.RECOVER, Step.WRITE, Step.COMMIT))
    and (when, step) != (When.AFTER, Step.WRITE)
]
WITHIN_RECOVERY = (When.DURING, Step.RECOVER)
"""There is such a moment only if an epoch was left unfinished."""

IN_TASKS = (Step.BEGIN, Step.WRITE, Step.PRE_COMMIT)
"""The steps of tasks; the others are the driver's."""
