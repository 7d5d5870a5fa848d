"""What it costs to hand Arrow batches to Kafka: `python -m bench.kafka_producer [--json]`.

Both ways of reaching librdkafka, in one process against one real broker, interleaved and
repeated. Processor time is that of this process alone, with all of librdkafka's threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_producer import TaskProducer, connect
from assent.sinks.kafka_records import HEADERS, Records
from assent.sinks.kafka_settings import producer_settings
from assent.testing.kafka import KafkaCluster

BATCH_ROWS = 10_000
SHAPES = ("plain", "keys", "timestamps", "headers")
CLIENTS = ("native", "plain")
_IDS = itertools.count()


@dataclass(frozen=True)
class Run:
    """One run: rows per second until everything was delivered, and processor time per row."""

    client: str
    shape: str
    rows_per_second: float
    microseconds_per_row: float
    begin_milliseconds: float
    close_milliseconds: float


def batch(shape: str, size: int) -> Records:
    """A batch of rows with values of that size."""
    values = pa.array([bytes(size)] * BATCH_ROWS)
    keys = None
    if shape != "plain":
        keys = pa.array([f"key-{number:08d}" for number in range(BATCH_ROWS)])
    times = np.full(BATCH_ROWS, 1_700_000_000_000) if shape == "timestamps" else None
    headers = None
    if shape == "headers":
        headers = pa.array([[{"key": "trace", "value": b"0123456789"}]] * BATCH_ROWS, HEADERS)
    return Records("rows", values, keys, timestamps=times, headers=headers)


def run(kafka: KafkaCluster, client: str, shape: str, rows: int, size: int) -> Run:
    guarantee = Guarantee.EXACTLY_ONCE
    settings = producer_settings(kafka.settings(), guarantee, f"bench-{next(_IDS)}")
    records = batch(shape, size)
    started = time.perf_counter()
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
    closed = time.perf_counter()
    return Run(
        client,
        shape,
        rows / (finished - begun),
        (after - before) / rows * 1e6,
        (begun - started) * 1e3,
        (closed - finished) * 1e3,
    )


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs: list[Run] = []
    with KafkaCluster() as kafka:
        kafka.create_topic("rows", partitions=arguments.partitions)
        run(kafka, "native", "plain", BATCH_ROWS, arguments.size)  # warms the broker up
        for _ in range(arguments.repeat):
            for shape in arguments.shapes:
                for client in CLIENTS:
                    runs.append(run(kafka, client, shape, arguments.rows, arguments.size))
    if arguments.json:
        print(json.dumps([vars(one) for one in runs]))
        return
    print(f"{arguments.rows} rows of {arguments.size} bytes, median of {arguments.repeat}")
    for shape in arguments.shapes:
        for client in CLIENTS:
            found = [one for one in runs if (one.shape, one.client) == (shape, client)]
            speed = statistics.median(one.rows_per_second for one in found)
            cost = statistics.median(one.microseconds_per_row for one in found)
            print(f"{shape:12} {client:8} {speed / 1e6:6.2f}M rows/s {cost:6.2f} µs of CPU per row")


if __name__ == "__main__":
    main()
