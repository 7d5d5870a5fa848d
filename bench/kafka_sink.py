"""The Kafka sinks that are compared: Spark's own in two settings, Assent's three guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame

from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_settings import producer_settings
from assent.testing.kafka import KafkaCluster
from bench.broker import fresh_topic
from bench.query import Options, Query

TASKS = 2
PARTITIONS = 4
BUILT_IN, EQUAL = "built-in, defaults", "built-in, equal settings"
GUARANTEES = ("exactly_once", "at_least_once", "none")
EXACTLY_ONCE = "assent, exactly_once"

_DEFAULTS = producer_settings({"bootstrap.servers": "anywhere"}, Guarantee.AT_LEAST_ONCE)
BATCHING = {
    "kafka.linger.ms": _DEFAULTS["linger.ms"],
    "kafka.batch.size": _DEFAULTS["batch.size"],
    "kafka.acks": "all",
    "kafka.compression.type": "none",
}
"""What Assent has by default, by the names that both clients know."""
JAVA_BUFFER = {"kafka.buffer.memory": str(1024 * int(_DEFAULTS["queue.buffering.max.kbytes"]))}
"""As much as Assent's client has per task."""

FAIRNESS = (
    "Spark's built-in sink runs with its defaults, and with the linger, batch size, buffer, "
    "compression and acks that Assent has. All write the same generated rows, with two tasks, to "
    "a topic of their own with four partitions on one broker, in turns. The built-in sink keeps "
    "its producers between queries; Assent's, with transactions, start anew. Epochs that warm up "
    "do not count. Spark hands batches of rows to Python, whose limit in bytes is lifted, as "
    "docs/tuning.md says; its own sink has none."
)


def contenders(
    kafka: KafkaCluster, frame: DataFrame, guarantees: Sequence[str] = GUARANTEES
) -> list[Query]:
    """All sinks, each into a fresh topic in every run."""

    @contextmanager
    def stage() -> Iterator[Options]:
        with fresh_topic(kafka, PARTITIONS) as topic:
            yield {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}

    return [
        Query(BUILT_IN, frame, {}, "kafka", stage),
        Query(EQUAL, frame, {**BATCHING, **JAVA_BUFFER}, "kafka", stage),
        *(
            Query(
                f"assent, {guarantee}",
                frame,
                {**BATCHING, "deliveryGuarantee": guarantee},
                "assent-kafka",
                stage,
            )
            for guarantee in guarantees
        ),
    ]
