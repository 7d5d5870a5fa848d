"""The numbered steps of an epoch, and the moments around them that can be observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias


class Step(IntEnum):
    """The steps, numbered as in the coordinator, the docs and the crash points of the tests."""

    RECOVER = 0
    BEGIN = 1
    WRITE = 2
    PRE_COMMIT = 3
    DECIDE = 4
    COMMIT = 5
    COMPLETE = 6


class When(Enum):
    """Where in a step a moment lies. DURING is between two commits, or two batches."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True)
class Moment:
    """An instant of the protocol: reported to the trace before anything after it happens.

    `epoch` is None where it is not known yet (the planning side of Spark's data source does not
    know the epoch's number), `partition` is None on the driver.
    """

    when: When
    step: Step
    epoch: int | None = None
    partition: int | None = None

    def __str__(self) -> str:
        return f"{self.when.value}-{self.step.name.lower().replace('_', '-')}"


Trace: TypeAlias = Callable[[Moment], None]


def no_trace(moment: Moment) -> None:
    """The trace of a run that nobody watches."""
