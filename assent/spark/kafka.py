"""The format `assent-kafka`."""

from __future__ import annotations

from assent.sinks.kafka import KafkaSink
from assent.spark.source import AssentSource


class KafkaSource(AssentSource):
    """Records of Kafka topics, of which readers with `read_committed` see each once."""

    sink_class = KafkaSink
