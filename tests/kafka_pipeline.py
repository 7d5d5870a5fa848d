"""Kafka to Spark to Kafka, disturbed at chosen instants, and read all the time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from assent.ledger.settlement import unfinished
from assent.protocol.name import nonce
from assent.sinks.kafka_control import KafkaControl
from assent.spark.assembly import open_checkpoint
from assent.testing.crash import CrashPoint
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_views import CommittedReader, fill
from assent.testing.process import DriverProcess
from assent.testing.reader import Rows

SECONDS = 180.0
ROWS_PER_EPOCH = 2400  # of two partitions: more than one Arrow batch in each

Disturb = Callable[[DriverProcess, int], None]
"""Does something while the process of that id stands at a crash point."""

# What Spark's own source reads, committed alone: a client that no sink uses.
_SPARK_READS = """
import json, sys
from assent.testing.session import start_session
from assent.testing.spark_kafka import connector_jars

session = start_session("local[2]", "check", {"spark.jars": ",".join(map(str, connector_jars()))})
rows = (
    session.read.format("kafka")
    .option("kafka.bootstrap.servers", sys.argv[1])
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", sys.argv[2])
    .load()
    .selectExpr("get_json_object(string(value), '$.partition') AS p",
                "get_json_object(string(value), '$.offset') AS o")
    .groupBy("p", "o").count().collect()
)
print(json.dumps([[int(row.p), int(row.o), row["count"]] for row in rows]))
session.stop()
"""


class Pipeline:
    """A source topic with its rows, a sink topic, and the job between them."""

    def __init__(
        self,
        kafka: KafkaCluster,
        folder: Path,
        front_end: str,
        *,
        epochs: int,
        more: Sequence[str] = (),
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.source, self.topic = f"app-topic-{nonce()}", f"views-{nonce()}"
        for topic in (self.source, self.topic):
            kafka.create_topic(topic, partitions=2)
        self.expected: Rows = fill(kafka, self.source, [epochs * ROWS_PER_EPOCH // 2] * 2)
        self._command = [
            *("-m", "assent.testing.job", "--front-end", front_end),
            *("--source", "kafka", "--source-topic", self.source),
            *("--per-epoch", str(ROWS_PER_EPOCH)),
            *("--sink", "kafka", "--topic", self.topic, "--bootstrap", kafka.bootstrap_servers),
            *("--checkpoint", str(self.checkpoint), *more),
        ]

    def start(self, *points: str) -> DriverProcess:
        """A driver that stands at those points."""
        return DriverProcess(self._command, self.folder, crash=list(map(CrashPoint.parse, points)))

    def kill_at(self, points: Sequence[str]) -> None:
        """The whole driver is killed at each point, and started again; then it may end."""
        for point in points:
            with self.start(point) as driver:
                driver.await_marker(SECONDS)
                driver.kill_all()
        with self.start() as driver:
            driver.await_exit(SECONDS)

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

    def reader(self) -> CommittedReader:
        return CommittedReader(self.kafka, self.topic)

    def assert_exactly_once(self, reader: CommittedReader) -> None:
        """What was seen all the time, what Spark reads now, and what is left open."""
        reader.await_rows(self.expected)
        assert reader.repeated == []
        assert self.spark_reads() == self.expected
        ledger, state = open_checkpoint(str(self.checkpoint))
        assert unfinished(ledger, state) == []
        with KafkaControl(self.kafka.settings()) as control:
            assert control.transactions("assent-") == []

    def spark_reads(self) -> Rows:
        command = [sys.executable, "-c", _SPARK_READS, self.kafka.bootstrap_servers, self.topic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        return Counter({(partition, offset): times for partition, offset, times in found})
