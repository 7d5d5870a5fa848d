"""What it costs to hand Arrow batches to Kafka: `python -m bench.kafka_producer [--quick]`.

Both ways of reaching librdkafka, in one process against one real broker, interleaved and
repeated. Processor time is that of this process alone, with all of librdkafka's threads.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_producer import TaskProducer, connect
from assent.sinks.kafka_records import HEADERS, Records
from assent.sinks.kafka_settings import producer_settings
from assent.testing.kafka import KafkaCluster
from bench import command
from bench.broker import broker, fresh_topic
from bench.result import Measure, Result

BATCH_ROWS = 10_000
SHAPES = ("plain", "keys", "timestamps", "headers")
CLIENTS = ("native", "plain")
PARTITIONS = 4
QUANTITIES = {"rows_per_second": "rows/s", "microseconds_per_row": "µs"}
FAIRNESS = (
    "Both ways are Assent's own: librdkafka's batch call from the Arrow buffers (native), and "
    "confluent-kafka's `produce` row by row (plain). Each run has a topic of its own."
)
SIZES = (
    command.Size("rows", 1_000_000, 10_000, "rows of a run"),
    command.Size("bytes", 100, 100, "bytes of a value"),
    command.Size("repeat", 5, 1, "runs of each"),
)
_IDS = itertools.count()


@dataclass(frozen=True)
class Run:
    """One run: rows per second until everything was delivered, and processor time per row."""

    client: str
    shape: str
    rows_per_second: float
    microseconds_per_row: float


def batch(topic: str, shape: str, size: int) -> Records:
    """A batch of rows with values of that size."""
    values = pa.array([bytes(size)] * BATCH_ROWS)
    keys = None
    if shape != "plain":
        keys = pa.array([f"key-{number:08d}" for number in range(BATCH_ROWS)])
    times = np.full(BATCH_ROWS, 1_700_000_000_000) if shape == "timestamps" else None
    headers = None
    if shape == "headers":
        headers = pa.array([[{"key": "trace", "value": b"0123456789"}]] * BATCH_ROWS, HEADERS)
    return Records(topic, values, keys, timestamps=times, headers=headers)


def run(kafka: KafkaCluster, client: str, shape: str, rows: int, size: int) -> Run:
    with fresh_topic(kafka, PARTITIONS) as topic:
        return _run(kafka, client, shape, rows, batch(topic, shape, size))


def _run(kafka: KafkaCluster, client: str, shape: str, rows: int, records: Records) -> Run:
    guarantee = Guarantee.EXACTLY_ONCE
    settings = producer_settings(kafka.settings(), guarantee, f"bench-{next(_IDS)}")
    producer = TaskProducer(
        connect(settings, kind=client),
        guarantee,
        message_bytes=int(settings["message.max.bytes"]),
    )
    with producer:
        producer.begin()
        begun, before = time.perf_counter(), _processor_time()
        for _ in range(rows // BATCH_ROWS):
            producer.write(records)
        producer.finish()
        finished, after = time.perf_counter(), _processor_time()
    return Run(
        client,
        shape,
        rows / (finished - begun),
        (after - before) / rows * 1e6,
    )


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(options: argparse.Namespace) -> Result:
    runs: list[Run] = []
    with broker() as kafka:
        run(kafka, "native", "plain", BATCH_ROWS, options.bytes)  # warms the broker up
        for _ in range(options.repeat):
            for shape in SHAPES:
                for client in CLIENTS:
                    runs.append(run(kafka, client, shape, options.rows, options.bytes))
    measures = []
    for quantity, unit in QUANTITIES.items():
        for shape in SHAPES:
            for client in CLIENTS:
                samples = [
                    float(getattr(one, quantity))
                    for one in runs
                    if (one.shape, one.client) == (shape, client)
                ]
                group = f"{shape}, {quantity.replace('_', ' ')}"
                measures.append(Measure.of(group, client, unit, samples))
    return Result("kafka_producer", "Arrow to librdkafka", FAIRNESS, {}, tuple(measures))


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
