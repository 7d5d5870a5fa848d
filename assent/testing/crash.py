"""Crash points: a process of a test stands still at one exact instant until it is killed.

A test names the instant in the environment of the driver it starts. Every process of that driver
(the driver itself, its Python workers, its executors) reports its moments to the trace made here;
the first one that reaches the point leaves a marker file and goes no further.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assent.protocol.errors import ConfigurationError
from assent.protocol.step import Moment, Step, Trace, When, no_trace

CRASH_VARIABLE = "ASSENT_CRASH"
MARKER_VARIABLE = "ASSENT_CRASH_MARKER"

_ORPHAN_CHECK_SECONDS = 0.2
_FORM = "<before|during|after>-<step>@<epoch or *>[/<partition>][#<occurrence>]"
_PATTERN = re.compile(
    r"(?P<when>before|during|after)-(?P<step>[a-z-]+)@(?P<epoch>\*|\d+)"
    r"(/(?P<partition>\d+))?(#(?P<occurrence>[1-9]\d*))?"
)


@dataclass(frozen=True)
class CrashPoint:
    """The instant at which a process stands still.

    An epoch of None (`*`) fits every moment, also one whose epoch is not known; a partition of
    None fits the driver and every task. `occurrence` counts the fitting moments of one process.

    >>> str(CrashPoint(When.AFTER, Step.PRE_COMMIT, epoch=1, partition=0))
    'after-pre-commit@1/0'
    >>> CrashPoint.parse("before-recover@*#2").occurrence
    2
    """

    when: When
    step: Step
    epoch: int | None = None
    partition: int | None = None
    occurrence: int = 1

    def __str__(self) -> str:
        epoch = "*" if self.epoch is None else str(self.epoch)
        partition = "" if self.partition is None else f"/{self.partition}"
        occurrence = "" if self.occurrence == 1 else f"#{self.occurrence}"
        return f"{Moment(self.when, self.step)}@{epoch}{partition}{occurrence}"

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        """Read the string form; a ValueError says what is wrong with it."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"not a crash point: {text!r} (expected {_FORM})")
        steps = {step.name.lower().replace("_", "-"): step for step in Step}
        if match["step"] not in steps:
            raise ValueError(f"no step {match['step']!r} in {text!r}; one of {', '.join(steps)}")
        return cls(
            When(match["when"]),
            steps[match["step"]],
            None if match["epoch"] == "*" else int(match["epoch"]),
            None if match["partition"] is None else int(match["partition"]),
            int(match["occurrence"] or 1),
        )

    def fits(self, moment: Moment) -> bool:
        """Whether the moment is of this point, leaving the occurrence aside."""
        return (
            (moment.when, moment.step) == (self.when, self.step)
            and self.epoch in (None, moment.epoch)
            and self.partition in (None, moment.partition)
        )


class CrashTrace:
    """A trace that stands still at a crash point.

    The point is taken once per marker file, by whichever process comes first: a second task at
    the same point, and the retry of a killed one, go on. While a process stands, its other
    threads stand too as soon as they report a moment, so that nothing overtakes the instant.
    """

    def __init__(self, point: CrashPoint, marker: Path) -> None:
        self.point = point
        self.marker = marker
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self, moment: Moment) -> None:
        with self._lock:
            if not self.point.fits(moment):
                return
            self._seen += 1
            if self._seen == self.point.occurrence and self._take():
                _stand()

    def _take(self) -> bool:
        """Create the marker, which holds the process id; False if somebody else has."""
        try:
            descriptor = os.open(self.marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, f"{os.getpid()}\n".encode())
        finally:
            os.close(descriptor)
        return True


def trace_from_environment(environment: Mapping[str, str] | None = None) -> Trace:
    """The trace that the environment asks for: one that watches nothing if it asks for none."""
    variables = os.environ if environment is None else environment
    text = variables.get(CRASH_VARIABLE)
    if not text:
        return no_trace
    marker = variables.get(MARKER_VARIABLE)
    if not marker:
        raise ConfigurationError(
            f"{CRASH_VARIABLE} is set to {text!r}, but {MARKER_VARIABLE} is not: set it to the "
            "path of the marker file, or unset both"
        )
    try:
        point = CrashPoint.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{CRASH_VARIABLE}: {error}") from error
    return _shared_trace(point, Path(marker))


@functools.cache
def _shared_trace(point: CrashPoint, marker: Path) -> CrashTrace:
    """One trace per process: front-ends ask anew in every epoch, and occurrences count on."""
    return CrashTrace(point, marker)


def _stand() -> None:
    """Wait to be killed. A process whose parent has died ends itself, so that none is left over.

    It ends by SIGKILL: no handler, no `finally` may run past the instant.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
