"""The Kafka of the benchmarks: one broker, run as Kafka's own start script runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from assent.protocol.name import nonce
from assent.testing.kafka import KafkaCluster

# Those of kafka-run-class.sh; tests do with less, to start faster.
_JAVA_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
_SECONDS = 30.0


def broker() -> KafkaCluster:
    """One broker with a heap of 1 GB, as the start script gives it."""
    # What is deleted is soon gone from the disk, on which the next contender writes.
    properties = {"log.segment.delete.delay.ms": "1000"}
    return KafkaCluster(properties=properties, heap="1g", java_options=_JAVA_OPTIONS)


@contextmanager
def fresh_topic(kafka: KafkaCluster, partitions: int) -> Iterator[str]:
    """A topic for one run only: nobody writes to a log that another has made long."""
    name = f"rows-{nonce()}"
    kafka.create_topic(name, partitions=partitions)
    try:
        yield name
    finally:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_topics([name])[name].result(_SECONDS)
