"""Chaos on the real thing: `python -m assent.testing.chaos --sink kafka --faults 100 --seed 1`.

Kafka to Spark to a sink, with a backlog that never ends, while a nemesis kills (SIGKILL) drivers,
executors, Python workers and servers, pauses them, and lets transactions time out: at instants
drawn from the seed, spread over all steps of the protocol. What has died is started again. A
reader watches all the time; in the end the input is compared with the output, by code that the
sinks do not share. Ends with 1 if anything was lost, seen twice, made up, torn or left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assent.protocol.name import nonce
from assent.protocol.step import Step, When
from assent.spark.assembly import open_checkpoint
from assent.testing.crash import CrashPoint
from assent.testing.kafka import KafkaCluster
from assent.testing.pipeline import SECONDS, Input, Pipeline
from assent.testing.process import DriverProcess, ProcessKind
from assent.testing.reader import Rows
from assent.testing.stage import STAGES, Stage, StageServer, Watch, open_stage

ROWS_PER_EPOCH = 200
POINTS_PER_START = 6
MASTER = "local-cluster[2,1,1024]"

_POINTS = [
    (When.BEFORE, Step.RECOVER),
    (When.AFTER, Step.RECOVER),
    (When.BEFORE, Step.BEGIN),
    (When.AFTER, Step.BEGIN),
    (When.BEFORE, Step.WRITE),
    (When.BEFORE, Step.PRE_COMMIT),
    (When.AFTER, Step.PRE_COMMIT),
    (When.BEFORE, Step.DECIDE),
    (When.AFTER, Step.DECIDE),
    (When.BEFORE, Step.COMMIT),
    (When.DURING, Step.COMMIT),
    (When.AFTER, Step.COMMIT),
    (When.BEFORE, Step.COMPLETE),
    (When.AFTER, Step.COMPLETE),
]
_IN_TASKS = (Step.BEGIN, Step.WRITE, Step.PRE_COMMIT)


@dataclass
class Result:
    """What was done, and what came of it."""

    sink: str
    seed: int
    guarantee: str
    faults: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    recoveries: list[float] = field(default_factory=list)
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    phantom: int = 0
    pending: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        wrong = self.lost or self.duplicated or self.phantom or self.pending or self.violations
        return not wrong

    def to_json(self) -> dict[str, object]:
        recoveries = sorted(self.recoveries)
        return {
            "sink": self.sink,
            "seed": self.seed,
            "guarantee": self.guarantee,
            "ok": self.good,
            "faults": self.faults.total(),
            "byKind": dict(sorted(self.faults.items())),
            "byStep": dict(sorted(self.steps.items())),
            "starts": self.starts,
            "recoverySeconds": {
                "median": round(recoveries[len(recoveries) // 2], 2) if recoveries else None,
                "longest": round(recoveries[-1], 2) if recoveries else None,
            },
            "rows": self.rows,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "phantom": self.phantom,
            "pending": self.pending,
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


class Nemesis:
    """Draws a fault, and does it while a process stands at a crash point."""

    def __init__(self, draw: random.Random, servers: Sequence[StageServer]) -> None:
        self._draw = draw
        self._servers = servers
        self._restore: Callable[[], None] = lambda: None
        self.kinds: dict[str, Callable[[DriverProcess, int], None]] = {
            "driver killed with all its processes": self._kill_all,
            "driver killed, its workers left behind": self._kill_driver,
            "process at the step killed": self._kill_standing,
            "executor killed": self._kill_executor,
            "driver paused": self._pause_driver,
        }
        if servers:
            self.kinds["server killed"] = self._kill_server
            self.kinds["server paused"] = self._pause_server

    def strike(self, driver: DriverProcess, standing: int) -> str:
        """Do something; gives its name."""
        kind = self._draw.choice(sorted(self.kinds))
        self.kinds[kind](driver, standing)
        return kind

    def restore(self) -> None:
        """Undo what is to be undone, now that the process goes on."""
        restore, self._restore = self._restore, lambda: None
        restore()

    def _kill_all(self, driver: DriverProcess, standing: int) -> None:
        driver.kill_all()

    def _kill_driver(self, driver: DriverProcess, standing: int) -> None:
        driver.kill_driver()

    def _kill_standing(self, driver: DriverProcess, standing: int) -> None:
        for process in driver.processes():
            if process.pid == standing:
                driver.kill(process)

    def _kill_executor(self, driver: DriverProcess, standing: int) -> None:
        found = [one for one in driver.processes() if one.kind is ProcessKind.EXECUTOR]
        if found:
            driver.kill(self._draw.choice(found))

    def _pause_driver(self, driver: DriverProcess, standing: int) -> None:
        driver.pause_all()
        time.sleep(self._draw.uniform(0.1, 2.0))  # the fault itself
        driver.resume_all()

    def _kill_server(self, driver: DriverProcess, standing: int) -> None:
        server = self._draw.choice(list(self._servers))
        server.kill()
        self._restore = server.start

    def _pause_server(self, driver: DriverProcess, standing: int) -> None:
        server, seconds = self._draw.choice(list(self._servers)), self._draw.uniform(0.1, 3.0)
        server.pause()

        def resume() -> None:
            time.sleep(seconds)  # the fault itself
            server.resume()

        self._restore = resume


class Chaos:
    """One run on one stage."""

    def __init__(
        self, folder: Path, stage: Stage, source: KafkaCluster, seed: int, guarantee: str
    ) -> None:
        self._draw = random.Random(seed)
        self._source = source
        self._topic = f"chaos-{nonce()}"
        source.create_topic(self._topic, partitions=2)
        self._filled: Rows = Counter()
        self._nemesis = Nemesis(self._draw, stage.servers)
        self.result = Result(stage.name, seed, guarantee)
        arguments = [
            *("--source", "kafka", "--source-bootstrap", source.bootstrap_servers),
            *("--source-topic", self._topic, "--per-epoch", str(ROWS_PER_EPOCH)),
            *("--master", MASTER, "--guarantee", guarantee),
        ]
        self._pipeline = Pipeline(folder, stage, Input(arguments, self._filled))

    def run(self, faults: int, report: Callable[[str], None]) -> Result:
        """Strike that often, then let the job end, and judge."""
        started = time.monotonic()
        with self._pipeline.watch() as watch:
            while self.result.faults.total() < faults:
                self._fill()
                self._run_once(faults)
                report(f"{self.result.faults.total()} faults, {self.result.starts} starts")
            self._pipeline.finish()
            self.result.starts += 1
            self._judge(watch)
        self.result.seconds = time.monotonic() - started
        return self.result

    def _fill(self) -> None:
        """Enough for every point of the next start, whatever was read of the topic so far."""
        from assent.testing.kafka_views import fill

        done = sum(self._filled[row] for row in self._filled) // 2
        epochs = 2 * POINTS_PER_START + 2
        more = epochs * ROWS_PER_EPOCH // 2
        self._filled.update(fill(self._source, self._topic, [done + more] * 2, first=done))

    def _run_once(self, faults: int) -> None:
        """One start of the job, until it has ended or has died."""
        _, state = open_checkpoint(str(self._pipeline.checkpoint))
        newest = state.newest_epoch()
        points = self._points(0 if newest is None else newest + 1)
        self.result.starts += 1
        begun: float | None = time.monotonic()
        with self._pipeline.start(*map(str, points)) as driver:
            for number, point in enumerate(points):
                standing = driver.await_marker_or_exit(SECONDS, number)
                if standing is None or self.result.faults.total() >= faults:
                    break
                if begun is not None:
                    self.result.recoveries.append(time.monotonic() - begun)
                    begun = None
                self.result.faults[self._nemesis.strike(driver, standing)] += 1
                self.result.steps[f"{int(point.step)} {point.step.name.lower()}"] += 1
                driver.release(number)
                self._nemesis.restore()
            driver.release_everything()
            driver.await_exit(SECONDS, expected=None)

    def _points(self, epoch: int) -> list[CrashPoint]:
        """Instants in the next epochs, in their order; planning is counted, not numbered."""
        points, plans = [], 1
        for _ in range(POINTS_PER_START):
            when, step = self._draw.choice(_POINTS)
            skipped = self._draw.randint(1, 2)
            epoch, plans = epoch + skipped, plans + skipped
            if step is Step.RECOVER:
                points.append(CrashPoint(when, step, occurrence=plans))
            elif step in _IN_TASKS:
                points.append(CrashPoint(when, step, epoch, self._draw.randint(0, 1)))
            else:
                points.append(CrashPoint(when, step, epoch))
        return points

    def _judge(self, watch: Watch) -> None:
        deadline = time.monotonic() + 30
        expected = self._filled
        while (found := watch.rows()) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        result, stage = self.result, self._pipeline.stage
        result.rows = expected.total()
        result.lost = len(expected.keys() - found.keys())
        result.duplicated = sum(times - 1 for times in found.values())
        result.phantom = len(found.keys() - expected.keys())
        result.pending = stage.pending(self._pipeline.trial)
        result.violations = list(watch.violations)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m assent.testing.chaos", description=__doc__)
    parser.add_argument("--sink", choices=STAGES, default="files")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--guarantee", default="exactly_once", help="the negative control: another")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="assent-chaos-"))
    try:
        with KafkaCluster() as source, open_stage(options.sink, folder) as stage:
            chaos = Chaos(folder, stage, source, options.seed, options.guarantee)
            result = chaos.run(
                options.faults, lambda line: print(line, file=sys.stderr, flush=True)
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        for name, value in result.to_json().items():
            print(f"{name:16} {value}")
    return 0 if result.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
