"""Kafka to Kafka: `python -m bench.kafka_to_kafka [--quick] [--engines …]`.

The same records are copied from one topic into another by Assent on Spark, Spark's built-in sink,
Flink and Quix Streams, in turns, each in processes of its own. An observer outside of them sees
the committed end of the target grow: rows per second from the first commit past the records that
warm an engine up to the first one past those that count. An epoch more follows, because at the end
of a topic Spark's source waits for records that do not come. In its first round every engine's
records are counted; before it comes a round that does not count, in which the broker warms up.

Flink and Quix Streams are installed on first use, into environments of their own. If that cannot
be done, or one of them fails, the result says so and goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_producer import TaskProducer, connect
from assent.sinks.kafka_records import Records
from assent.sinks.kafka_settings import producer_settings
from assent.testing.jars import Artifact, JarsUnavailable, resolve
from assent.testing.kafka import KafkaCluster
from assent.testing.process import DriverFailure, DriverProcess
from assent.testing.spark_kafka import connector_jars
from bench import command, target
from bench.broker import broker, fresh_topic
from bench.command import say
from bench.environment import EnvironmentUnavailable, interpreter
from bench.kafka_sink import BATCHING, JAVA_BUFFER
from bench.result import Measure, Result, ratio
from bench.target import Outcome
from bench.watcher import Watcher

TASKS = 2
PARTITIONS = 2
BATCH_ROWS = 10_000
FLINK = "apache-flink==2.3.0"
FLINK_CONNECTOR = Artifact("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
QUIX = "quixstreams==3.28.1"
GROUP = "copied"
SOURCE = {"kafka.max.poll.records": "10000"}
"""Of Spark's source, which asks for the ends of its partition with each poll (docs/tuning.md)."""
WARM_UP = -1
"""The round that comes before all others and does not count."""
ENGINES = ("assent", "spark", "flink", "quix")
FAIRNESS = (
    "Two partitions and a parallelism of two for all; no keys, and values that all differ; "
    "linger, batch size, compression and acks are equal, and the Java clients have the same "
    "buffer. Spark takes epochs of a fixed number of rows, from the same source with the same "
    "settings; Flink and Quix Streams commit at an interval of about the same length. "
    "Checkpoints are on the local disk. Spark and Flink have a heap of 2 GB and copy inside of "
    "the JVM (Flink: SQL, raw format, object reuse); Quix Streams runs as two processes. Spark's "
    "built-in sink is at-least-once; the others are exactly-once. The limit in bytes of "
    "batches for Python is lifted, as docs/tuning.md says; only Assent has such batches."
)
SIZES = (
    command.Size("rows", 10_000_000, 10_000, "records that count"),
    command.Size("warm_up", 10_000_000, 5_000, "records before them, while Java compiles"),
    command.Size("bytes", 100, 100, "bytes of a value"),
    command.Size("epoch", 1_000_000, 5_000, "records of a Spark epoch"),
    command.Size("interval", 2.0, 0.5, "seconds between the commits of Flink and Quix Streams"),
    command.Size("rounds", 5, 1, "how often each engine has its turn; Quix Streams: twice"),
    command.Size("engines", ENGINES, ("assent", "spark"), "those that take part"),
    command.Size("deadline", 3600.0, 120.0, "seconds after which an engine is given up"),
)

_SHARED = {name.removeprefix("kafka."): value for name, value in BATCHING.items()}
_JAVA = {name.removeprefix("kafka."): value for name, value in JAVA_BUFFER.items()}


@dataclass(frozen=True)
class Engine:
    """How to start one: its processes, and the settings to show."""

    name: str
    module: str
    wish: dict[str, Any]
    settings: dict[str, str]
    python: str | None = None
    processes: int = 1
    turns: int | None = None
    """At most; one that is slow by an order of magnitude is measured well enough by a few."""

    def start(self, folder: Path, more: dict[str, str], open_: ExitStack) -> list[DriverProcess]:
        environment = {"JVM_ARGS": "-Xmx2g"}
        # By path and without its folder: another environment has no package of that name.
        arguments = ["-P", str(Path(__file__).with_name(f"{self.module}.py"))]
        if self.python is None:
            arguments = ["-m", f"bench.{self.module}"]
            root = str(Path(__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        return [
            open_.enter_context(
                DriverProcess(
                    [*arguments, json.dumps({**self.wish, **more})],
                    folder,
                    environment=environment,
                    python=self.python or sys.executable,
                )
            )
            for _ in range(self.processes)
        ]


def measure(options: argparse.Namespace) -> Result:
    engines, notes = _engines(options)
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    with broker() as kafka, fresh_topic(kafka, PARTITIONS) as source:
        say(f"  {_total(options):,} records are written to be copied …")
        fill(kafka, source, _total(options), options.bytes)
        for turn in range(0 if options.quick else WARM_UP, options.rounds):
            for step in range(len(engines)):
                engine = engines[(turn + step) % len(engines)]
                if engine.turns is not None and not 0 <= turn < engine.turns:
                    continue
                say(f"  round {turn + 1} of {options.rounds}: {engine.name}")
                try:
                    speed, found = _copy(kafka, source, engine, options, counts=turn == 0)
                except (DriverFailure, TimeoutError) as error:
                    notes.append(f"{engine.name} FAILED in round {turn + 1}")
                    say(f"  {notes[-1]}: {error}")
                    continue
                if turn != WARM_UP:
                    speeds[engine.name].append(speed)
                if found is not None and found != _total(options):
                    notes.append(f"{engine.name} wrote {found:,} records of {_total(options):,}")
    measures = [
        Measure.of(GROUP, engine.name, "rows/s", speeds[engine.name], engine.settings)
        for engine in engines
        if speeds[engine.name]
    ]
    return Result(
        "kafka_to_kafka",
        "Kafka to Kafka",
        FAIRNESS,
        {},
        tuple(measures),
        tuple(_outcomes(measures)),
        tuple(notes),
    )


def fill(kafka: KafkaCluster, topic: str, rows: int, size: int) -> None:
    """Different values of one size, in both partitions by turns."""
    guarantee = Guarantee.AT_LEAST_ONCE
    settings = producer_settings(kafka.settings(), guarantee)
    limit = int(settings["message.max.bytes"])
    with TaskProducer(connect(settings), guarantee, message_bytes=limit) as producer:
        producer.begin()
        for first in range(0, rows, BATCH_ROWS):
            numbers = range(first, min(first + BATCH_ROWS, rows))
            values = pa.array([b"%0*d" % (size, number) for number in numbers])
            producer.write(Records(topic, values))
        producer.finish()


def _copy(
    kafka: KafkaCluster,
    source: str,
    engine: Engine,
    options: argparse.Namespace,
    *,
    counts: bool,
) -> tuple[float, int | None]:
    """One engine, once: its speed and, if asked for, how many records it has written."""
    with (
        tempfile.TemporaryDirectory(prefix="assent-bench-") as folder,
        fresh_topic(kafka, PARTITIONS) as topic,
    ):
        watcher = Watcher(kafka.bootstrap_servers, topic, PARTITIONS)
        place = {"servers": kafka.bootstrap_servers, "source": source, "target": topic}
        with ExitStack() as running:
            processes = engine.start(Path(folder), place, running)
            watcher.wait(_total(options), options.deadline, _alive(engine, processes))
        speed = watcher.rows_per_second(options.warm_up, options.warm_up + options.rows)
        return speed, watcher.count() if counts else None


def _total(options: argparse.Namespace) -> int:
    return int(options.warm_up + options.rows + options.epoch)


def _alive(engine: Engine, processes: list[DriverProcess]) -> Callable[[], None]:
    def check() -> None:
        for process in processes:
            if not process.running:
                raise DriverFailure(f"{engine.name} ended by itself:\n{process.tail()}")

    return check


def _engines(options: argparse.Namespace) -> tuple[list[Engine], list[str]]:
    """Those that can be had, and a note on each that cannot."""
    makers = {"assent": _assent, "spark": _spark, "flink": _flink, "quix": _quix}
    engines, notes = [], []
    for name in options.engines:
        try:
            engines.append(makers[name](options))
        except (EnvironmentUnavailable, JarsUnavailable) as error:
            notes.append(f"{name} is LEFT OUT: {error}")
            say(f"  {notes[-1]}")
    return engines, notes


def _on_spark(name: str, format_: str, sink: dict[str, str], options: argparse.Namespace) -> Engine:
    source = {**SOURCE, "maxOffsetsPerTrigger": str(options.epoch)}
    wish = {
        "tasks": TASKS,
        "jars": ",".join(map(str, connector_jars())),
        "source_options": source,
        "format": format_,
        "options": sink,
    }
    return Engine(name, "copy_spark", wish, {**source, **sink})


def _assent(options: argparse.Namespace) -> Engine:
    sink = {**BATCHING, "deliveryGuarantee": "exactly_once"}
    return _on_spark("assent, exactly_once", "assent-kafka", sink, options)


def _spark(options: argparse.Namespace) -> Engine:
    return _on_spark("Spark built-in", "kafka", {**BATCHING, **JAVA_BUFFER}, options)


def _flink(options: argparse.Namespace) -> Engine:
    [jar] = resolve(FLINK_CONNECTOR, alone=True)
    producer = {**_SHARED, **_JAVA}
    wish = {"tasks": TASKS, "interval": options.interval, "jar": str(jar), "producer": producer}
    settings = {
        **producer,
        "execution.checkpointing.interval": f"{options.interval} s",
        "sink.delivery-guarantee": "exactly-once",
        "version": f"{FLINK}, connector {FLINK_CONNECTOR.version}",
    }
    python = interpreter("flink", FLINK)
    return Engine("Flink, exactly-once", "copy_flink", wish, settings, python)


def _quix(options: argparse.Namespace) -> Engine:
    wish = {"interval": options.interval, "producer": _SHARED}
    settings = {
        **_SHARED,
        "commit_interval": str(options.interval),
        "processing_guarantee": "exactly-once",
        "version": QUIX,
    }
    python = interpreter("quix", QUIX)
    return Engine("Quix Streams, exactly-once", "copy_quix", wish, settings, python, TASKS, 2)


def _outcomes(measures: list[Measure]) -> list[Outcome]:
    names = {measure.name for measure in measures}
    mine = "assent, exactly_once"
    goals = {"Spark built-in": target.COPY_SPARK, "Flink, exactly-once": target.COPY_FLINK}
    return [
        Outcome(goal, ratio(measures, GROUP, mine, other))
        for other, goal in goals.items()
        if {mine, other} <= names
    ]


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
