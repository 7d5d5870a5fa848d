"""Page views in Kafka topics: filling one, reading one all the time, counting one.

Read by kafka-python's consumer, with which no row is written.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import kafka
import kafka.errors
from confluent_kafka import Producer

from assent.testing.kafka import KafkaCluster
from assent.testing.pageviews import page_views
from assent.testing.reader import Row, Rows

_READ_SECONDS = 60.0
_POLL_MILLISECONDS = 100


def fill(
    cluster: KafkaCluster, topic: str, ends: Sequence[int], seed: int = 1, first: int = 0
) -> Rows:
    """Write the page views up to those offsets, one partition each, as JSON; returns them."""
    producer = Producer(cluster.settings() | {"linger.ms": "20"})
    rows: Rows = Counter()
    for partition, end in enumerate(ends):
        for view in page_views(seed, partition, first, end).to_pylist():
            view["viewed_at"] = view["viewed_at"].isoformat()
            producer.produce(topic, json.dumps(view), key=view["user"], partition=partition)
            producer.poll(0)
            rows[partition, view["offset"]] += 1
    assert producer.flush(_READ_SECONDS) == 0
    return rows


def read_views(cluster: KafkaCluster, topic: str) -> Rows:
    """All that a `read_committed` reader gets now, up to the first open transaction."""
    rows: Rows = Counter()
    consumer = _consumer(cluster)
    try:
        places = _places(consumer, topic)
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        # For such a reader a topic ends before the first open transaction.
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=_POLL_MILLISECONDS).values():
                rows.update(_row(record.value) for record in records)
    finally:
        consumer.close()
    return rows


class CommittedReader:
    """Reads a topic of page views all the time, committed rows only, and counts each.

    It outlives brokers that are killed and restarted. Use as a context manager.
    """

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._rows: Rows = Counter()
        self._cluster = cluster
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="committed-reader")
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._executor.shutdown()
        if self._running is not None:
            self._running.result()

    def seen(self) -> Rows:
        """All rows so far, and how often each was seen."""
        with self._lock:
            return Counter(self._rows)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read()
            except kafka.errors.KafkaError:
                self._stopped.wait(0.2)  # no broker is there; go on where it was

    def _read(self) -> None:
        consumer = _consumer(self._cluster)
        try:
            places = _places(consumer, self._topic)
            consumer.assign(places)
            for place in places:
                consumer.seek(place, self._positions.get(place.partition, 0))
            while places and not self._stopped.is_set():
                for place, records in consumer.poll(timeout_ms=_POLL_MILLISECONDS).items():
                    with self._lock:
                        self._rows.update(_row(record.value) for record in records)
                        self._positions[place.partition] = records[-1].offset + 1
        finally:
            consumer.close()


def _consumer(cluster: KafkaCluster) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
    )


def _places(consumer: kafka.KafkaConsumer, topic: str) -> list[kafka.TopicPartition]:
    numbers = consumer.partitions_for_topic(topic) or set()
    return [kafka.TopicPartition(topic, number) for number in numbers]


def _row(value: bytes) -> Row:
    view = json.loads(value)
    return view["partition"], view["offset"]
