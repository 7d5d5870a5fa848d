"""The format `assent-kafka`."""

from __future__ import annotations

from typing import Any

from assent.sinks.kafka import KafkaSink
from assent.spark.source import AssentSource


class KafkaSource(AssentSource):
    """Records of Kafka topics, of which readers with `read_committed` see each once."""

    sink_options = KafkaSink.OPTIONS

    @classmethod
    def name(cls) -> str:
        return "assent-kafka"

    @classmethod
    def make_sink(cls, values: dict[str, Any]) -> KafkaSink:
        return KafkaSink.from_options(values)
