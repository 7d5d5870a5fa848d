"""Crash points: a process of a test stands still at one exact instant until it is killed.

A test names the instant, or several, in the environment of the driver it starts. Every process of
that driver (the driver itself, its Python workers, its executors) reports its moments to the trace
made here; the first one that reaches a point leaves a marker file and goes no further: until it
is killed, or until the test lets it go on, having done something to the world around it.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assent.protocol.errors import ConfigurationError
from assent.protocol.step import Moment, Step, Trace, When, no_trace

CRASH_VARIABLE = "ASSENT_CRASH"
MARKER_VARIABLE = "ASSENT_CRASH_MARKER"

_CHECK_SECONDS = 0.05
_FORM = "<before|during|after>-<step>@<epoch or *>[/<partition>][#<occurrence>]"
_PATTERN = re.compile(
    r"(?P<when>before|during|after)-(?P<step>[a-z-]+)@(?P<epoch>\*|[0-9]+)"
    r"(/(?P<partition>[0-9]+))?(#(?P<occurrence>[1-9][0-9]*))?"
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


def marker_of(marker: Path, point: int) -> Path:
    """The marker file of a point, by its place among the points."""
    return marker.with_name(f"{marker.name}-{point}")


def release_of(marker: Path) -> Path:
    """The file whose appearance lets the process go on that has left a marker."""
    return marker.with_name(f"{marker.name}-go")


class CrashTrace:
    """A trace that stands still at crash points.

    A point is taken once per marker file, by whichever process comes first: a second task at
    the same point, and the retry of a killed one, go on. While a process stands, its other
    threads stand too as soon as they report a moment, so that nothing overtakes the instant.
    """

    def __init__(self, points: Sequence[CrashPoint], marker: Path) -> None:
        self.points = tuple(points)
        self.marker = marker
        self._seen = [0] * len(self.points)
        self._lock = threading.Lock()

    def __call__(self, moment: Moment) -> None:
        with self._lock:
            for number, point in enumerate(self.points):
                if not point.fits(moment):
                    continue
                self._seen[number] += 1
                marker = marker_of(self.marker, number)
                if self._seen[number] == point.occurrence and _take(marker):
                    _stand(release_of(marker))


def _take(marker: Path) -> bool:
    """Create the marker, which holds the process id; False if somebody else has."""
    try:
        descriptor = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
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
        points = tuple(map(CrashPoint.parse, text.split(",")))
    except ValueError as error:
        raise ConfigurationError(f"{CRASH_VARIABLE}: {error}") from error
    return _shared_trace(points, Path(marker))


@functools.cache
def _shared_trace(points: tuple[CrashPoint, ...], marker: Path) -> CrashTrace:
    """One trace per process: front-ends ask anew in every epoch, and occurrences count on."""
    return CrashTrace(points, marker)


def _stand(release: Path) -> None:
    """Wait to be killed or let go. A process whose parent has died ends itself: none is left over.

    It ends by SIGKILL: no handler, no `finally` may run past the instant.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        if release.exists():
            return
        time.sleep(_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
