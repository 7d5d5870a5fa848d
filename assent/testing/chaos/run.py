"""A job under load that nothing is spared, started again until it has had its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from assent.ledger.settlement import unfinished
from assent.spark.assembly import open_checkpoint
from assent.testing.chaos.nemesis import Nemesis
from assent.testing.chaos.result import Result
from assent.testing.chaos.strike import EPOCHS_PER_START, Fault, Plan, Strike, draw_plan
from assent.testing.disk import SmallDisk
from assent.testing.job import BUILT_IN
from assent.testing.kafka import KafkaCluster
from assent.testing.pipeline import SECONDS, KafkaInput, Pipeline
from assent.testing.process import DriverFailure, DriverProcess
from assent.testing.stage import Stage, Watch

ROWS_PER_EPOCH = 200

_DISK = "48m"
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.05
_FUTILE_STARTS = 6
"""So many starts one after the other without a strike, and something is wrong."""


_Numbered = tuple[Strike, int | None]
"""A strike, and the number of its crash point among those of the start, if it has one."""


class Chaos:
    """One run on one stage. A context manager."""

    def __init__(self, folder: Path, stage: Stage, source: KafkaCluster, result: Result) -> None:
        self.result = result
        self._input = KafkaInput(source, ROWS_PER_EPOCH)
        more = ["--guarantee", result.guarantee]
        self._pipeline = Pipeline(folder, stage, self._input, more=more)
        self._disk = SmallDisk(self._pipeline.checkpoint, _DISK)
        self._nemesis = Nemesis(stage, self._pipeline.trial, self._disk)
        self._zombies: list[DriverProcess] = []

    def __enter__(self) -> Self:
        self._disk.__enter__()
        if not self._disk.mounted:
            self.result.unavailable.append(Fault.DISK.value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bury()
        self._disk.__exit__(kind, error, trace)

    def run(self, faults: int, report: Callable[[str], None]) -> Result:
        """Strike that often, then let the job end, and judge."""
        started = time.monotonic()
        result = self.result
        with self._pipeline.watch() as watch:
            futile = 0
            while result.faults < faults:
                before = result.faults
                self._fill(watch)
                self._run_once(faults, watch)
                futile = 0 if result.faults > before else futile + 1
                assert futile < _FUTILE_STARTS, "the job gets nowhere"
                report(f"{result.sink}: {result.faults} faults, {result.starts} starts")
            self._wake()
            self._bury()
            result.starts += 1
            self._pipeline.finish()
            self._judge(watch)
        result.seconds = time.monotonic() - started
        return result

    def _fill(self, watch: Watch) -> None:
        """A backlog that is enough for all strikes of the next start."""
        epochs_left = (self._input.rows.total() - watch.count) // ROWS_PER_EPOCH
        self._input.add(max(0, EPOCHS_PER_START - epochs_left))

    def _plan(self) -> Plan:
        steps = self._pipeline.stage.name != BUILT_IN
        newest = None
        if steps:
            _, state = open_checkpoint(str(self._pipeline.checkpoint))
            newest = state.newest_epoch()
        return draw_plan(
            self.result.seed,
            self.result.starts,
            0 if newest is None else newest + 1,
            self._nemesis.possible(),
            steps=steps,
        )

    def _run_once(self, faults: int, watch: Watch) -> None:
        """One start of the job, until it has ended, or has died, or was replaced."""
        plan = self._plan()
        self.result.starts += 1
        points = [str(strike.point) for strike in plan.strikes if strike.point is not None]
        master = "local-cluster[2,1,1024]" if plan.cluster else "local[2]"
        left = list(_numbered(plan.strikes))
        with ExitStack() as held:
            more = ["--master", master, "--restarts", str(plan.restarts)]
            driver = held.enter_context(self._pipeline.start(*points, more=more))
            while left and self.result.faults < faults:
                reached = self._await_one(driver, left, watch)
                if reached is None:
                    break
                left.remove(reached)
                strike, number = reached
                standing = None if number is None else driver.standing(number)
                self.result.strikes.append((time.monotonic(), strike))
                self._nemesis.strike(strike.fault, driver, standing)
                if strike.fault in (Fault.REPLACED, Fault.DRIVER_ALONE):
                    held.pop_all()
                    self._zombies.append(driver)
                    return
                if number is not None:
                    driver.release(number)
                self._nemesis.repair(strike.fault, driver, strike.seconds)
                self._wake()
            driver.release_everything()
            driver.await_exit(SECONDS, expected=None)
        self._bury()

    def _await_one(
        self, driver: DriverProcess, left: Sequence[_Numbered], watch: Watch
    ) -> _Numbered | None:
        """Until one of the points is reached, or it is time for the next strike without one.

        None if the driver has ended. Points may be reached in another order than planned: an
        epoch that is repeated is planned again.
        """
        seen = watch.count
        deadline = time.monotonic() + SECONDS
        while driver.running:
            for strike, number in left:
                if number is not None and driver.standing(number) is not None:
                    return strike, number
            first, number = left[0]
            if number is None and watch.count > seen:
                time.sleep(first.seconds)  # any time
                return first, None
            if time.monotonic() > deadline:
                raise DriverFailure(f"none of {left} comes within {SECONDS:g} s: {driver.tail()}")
            time.sleep(_POLL_SECONDS)
        return None

    def _wake(self) -> None:
        """Let drivers go on that were replaced: they have to find out."""
        for zombie in self._zombies:
            zombie.release_everything()
            zombie.resume_all()

    def _bury(self) -> None:
        zombies, self._zombies = self._zombies, []
        for zombie in zombies:
            zombie.close()

    def _judge(self, watch: Watch) -> None:
        result, stage = self.result, self._pipeline.stage
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (found := watch.rows()) != self._input.rows and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        result.judge(found, self._input.rows)
        if stage.atomic:
            result.torn = len(watch.torn(ROWS_PER_EPOCH))
        if stage.name != BUILT_IN:
            ledger, state = open_checkpoint(str(self._pipeline.checkpoint))
            result.unfinished = [place.epoch for place in unfinished(ledger, state)]
            result.pending = stage.pending(self._pipeline.trial)
        result.violations = list(watch.violations)
        result.looks = watch.looks
        result.measure_recoveries(watch.totals)


def _numbered(strikes: Sequence[Strike]) -> Iterator[_Numbered]:
    number = 0
    for strike in strikes:
        yield strike, None if strike.point is None else number
        number += strike.point is not None
