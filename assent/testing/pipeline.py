"""A job on a stage, killed or disturbed at chosen instants, started again, and judged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assent.ledger.settlement import unfinished
from assent.protocol.name import nonce
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.process import DriverProcess
from assent.testing.reader import Rows, expected_rows
from assent.testing.spark_kafka import connector_jars
from assent.testing.stage import Stage, Watch

if TYPE_CHECKING:
    from assent.testing.kafka import KafkaCluster

SECONDS = 180.0
ROWS_PER_EPOCH = 2400
"""Of two partitions: more than one Arrow batch in each."""

_SETTLE_SECONDS = 30.0

Disturb = Callable[[DriverProcess, int], None]
"""Does something while the process of that id stands at a crash point."""


class Input:
    """What a job reads: what it is told, and the rows that have to come out."""

    def __init__(self, arguments: Sequence[str], rows: Rows) -> None:
        self.arguments = arguments
        self.rows = rows


def scripted(epochs: int) -> Input:
    """Page views that need no server."""
    half = ROWS_PER_EPOCH // 2
    boundaries: Boundaries = tuple((half * n, half * n) for n in range(1, epochs + 1))
    rows: Rows = Counter()
    for more in expected_rows(boundaries).values():
        rows.update(more)
    return Input(["--boundaries", format_boundaries(boundaries)], rows)


class KafkaInput(Input):
    """Page views in a topic of two partitions, to which more can be added."""

    def __init__(
        self,
        cluster: KafkaCluster,
        rows_per_epoch: int = ROWS_PER_EPOCH,
        topic: str | None = None,
    ) -> None:
        connector_jars()  # now, for a job's time begins with its start
        self._cluster = cluster
        self._topic = topic or f"app-topic-{nonce()}"
        self._half = rows_per_epoch // 2
        cluster.create_topic(self._topic, partitions=2)
        arguments = [
            *("--source", "kafka", "--source-bootstrap", cluster.bootstrap_servers),
            *("--source-topic", self._topic, "--per-epoch", str(rows_per_epoch)),
        ]
        super().__init__(arguments, Counter())

    def add(self, epochs: int) -> None:
        """As many rows more, which have to come out too."""
        from assent.testing.kafka_views import fill

        done = self.rows.total() // 2
        ends = [done + epochs * self._half] * 2
        self.rows.update(fill(self._cluster, self._topic, ends, first=done))


def from_kafka(cluster: KafkaCluster, epochs: int, topic: str | None = None) -> KafkaInput:
    """Page views of so many epochs in a topic."""
    given = KafkaInput(cluster, topic=topic)
    given.add(epochs)
    return given


class Pipeline:
    """One trial on a stage: a checkpoint, and the job that can be started again and again."""

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        given: Input,
        front_end: str = "datasource",
        more: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.stage = stage
        self.trial = f"views-{nonce()}"
        self.expected = given.rows
        self.checkpoint = folder / "checkpoint"
        self._command = [
            *("-m", "assent.testing.job", "--front-end", front_end),
            *("--checkpoint", str(self.checkpoint)),
            *(*given.arguments, *stage.prepare(self.trial), *more),
        ]

    def watch(self) -> Watch:
        return self.stage.watch(self.trial)

    def start(self, *points: str, more: Sequence[str] = ()) -> DriverProcess:
        """A driver that stands at those points; `more` is what it is told besides."""
        crash = list(map(CrashPoint.parse, points))
        return DriverProcess([*self._command, *more], self.folder, crash=crash)

    def finish(self) -> None:
        """Let the job come to its end."""
        with self.start() as driver:
            driver.await_exit(SECONDS)

    def kill_at(self, points: Sequence[str]) -> None:
        """The whole driver is killed at each point, and started again; then it may end."""
        for point in points:
            with self.start(point) as driver:
                driver.await_marker(SECONDS)
                driver.kill_all()
        self.finish()

    def disturb_at(
        self, points: Sequence[str], disturb: Disturb, restore: Callable[[], None] = lambda: None
    ) -> int:
        """Something happens at each point, and the job goes on; a job that fails starts again.

        `restore` follows when it is on its way again. Returns how often the job was started.
        """
        left, starts = list(points), 0
        while True:
            starts += 1
            assert starts <= len(points) + 1, "the job gets nowhere"
            with self.start(*left) as driver:
                reached = self._disturb(driver, left, disturb, restore)
                if driver.await_exit(SECONDS, expected=None) == 0:
                    assert reached == len(left), f"{left[reached:]} was not reached"
                    return starts
                left = left[reached:]

    def _disturb(
        self,
        driver: DriverProcess,
        points: Sequence[str],
        disturb: Disturb,
        restore: Callable[[], None],
    ) -> int:
        """How many of the points were reached before the driver ended."""
        for number in range(len(points)):
            standing = driver.await_marker_or_exit(SECONDS, number)
            if standing is None:
                return number
            disturb(driver, standing)
            driver.release(number)
            restore()
        return len(points)

    def assert_exactly_once(self, watch: Watch) -> None:
        """Every row once, at all times; nothing pending, nothing unfinished."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (found := watch.rows()) != self.expected and time.monotonic() < deadline:
            if found - self.expected:
                break  # late is all that a row may be
        missing, extra = self.expected - found, found - self.expected
        assert not extra, f"twice, or never written: {sorted(extra)[:10]} of {extra.total()}"
        assert not missing, f"lost: {sorted(missing)[:10]} of {missing.total()}"
        assert not watch.violations, watch.violations
        assert watch.looks > 1, "nobody has looked"
        if self.stage.atomic:
            torn = watch.torn(ROWS_PER_EPOCH)
            assert not torn, f"parts of an epoch were seen: {torn[:10]} rows"
        ledger, state = open_checkpoint(str(self.checkpoint))
        left = unfinished(ledger, state)
        assert not left, f"unfinished: {left}"
        pending = self.stage.pending(self.trial)
        assert not pending, f"pending: {pending}"
