"""What is to happen, and when: drawn from a seed, before any of it does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from assent.protocol.step import Step, When
from assent.testing.crash import CrashPoint
from assent.testing.moments import IN_TASKS, MOMENTS, WITHIN_RECOVERY

STRIKES_PER_START = 20
EPOCHS_PER_START = 2 * STRIKES_PER_START + 2
"""No start needs more of them for all its strikes."""

# The epochs are too small for a moment within a write.
_STEPS = [
    moment for moment in MOMENTS if moment not in (WITHIN_RECOVERY, (When.DURING, Step.WRITE))
]
_TIMED = 0.15
"""How many of the strikes come at any time, not at a step."""


class Fault(Enum):
    """What can happen."""

    DRIVER = "driver killed with all its processes"
    DRIVER_ALONE = "driver killed, its executors left behind"
    REPLACED = "driver paused, another one started, the first one woken"
    PAUSED = "driver and executors paused"
    EXECUTOR = "executor killed"
    WORKER = "Python worker killed"
    STANDING = "process at the step killed"
    SERVER = "server killed"
    SERVER_PAUSED = "server paused"
    CUT = "connections cut"
    ANSWERS = "answers lost"
    AWAY = "network away"
    DISK = "disk of ledger and checkpoint full"
    EXPIRED = "pending transactions given up by the store"


FATAL = frozenset({Fault.DRIVER, Fault.DRIVER_ALONE, Fault.REPLACED, Fault.DISK})
"""After these the job has to be started again. They are drawn less often: starts take the time."""


@dataclass(frozen=True)
class Strike:
    """One fault. Without a point it comes so many seconds after rows were seen to arrive."""

    fault: Fault
    point: CrashPoint | None
    seconds: float

    @property
    def step(self) -> str:
        if self.point is None:
            return "any time"
        return f"{int(self.point.step)} {self.point.step.name.lower().replace('_', ' ')}"


@dataclass(frozen=True)
class Plan:
    """What one start of the job has to go through."""

    strikes: Sequence[Strike]
    cluster: bool
    """Whether executors are processes of their own."""
    restarts: int
    """How often the driver starts its query again by itself, as long as it lives."""


def draw_plan(
    seed: int, start: int, epoch: int, faults: Sequence[Fault], *, steps: bool = True
) -> Plan:
    """The plan of the start of that number, whose first new epoch is `epoch`.

    The same for the same arguments, whatever happened before. `steps` is False for a job that
    knows no steps: then all strikes come at any time.
    """
    draw = random.Random(f"{seed}/{start}")
    cluster = draw.random() < 0.5
    restarts = draw.choice([0, STRIKES_PER_START])
    possible = [fault for fault in faults if cluster or fault is not Fault.EXECUTOR]
    weights = [1 if fault in FATAL else 3 for fault in possible]
    points = _points(draw, epoch)
    strikes = []
    for _ in range(STRIKES_PER_START):
        point = next(points)
        timed = draw.random() < _TIMED or not steps
        [fault] = draw.choices(possible, weights)
        strikes.append(Strike(fault, None if timed else point, draw.uniform(0.05, 2.0)))
    return Plan(strikes, cluster, restarts)


def _points(draw: random.Random, epoch: int) -> Iterator[CrashPoint]:
    """Instants one after the other. Planning does not know its epoch: it is counted."""
    plans = 1
    while True:
        when, step = draw.choice(_STEPS)
        skipped = draw.randint(1, 2)
        epoch, plans = epoch + skipped, plans + skipped
        if step is Step.RECOVER:
            yield CrashPoint(when, step, occurrence=plans)
        elif step in IN_TASKS:
            yield CrashPoint(when, step, epoch, draw.randint(0, 1))
        else:
            yield CrashPoint(when, step, epoch)
