"""The demo on Kafka: a real broker, a topic for each trial, and a `read_committed` reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assent.ops.stage import Stage
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_views import read_views
from assent.testing.reader import Rows


class KafkaStage(Stage):
    """One broker for all trials."""

    def __init__(self) -> None:
        self._cluster = KafkaCluster()

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.close()

    def arguments(self, trial: Path) -> Sequence[str]:
        self._cluster.create_topic(trial.name, partitions=2)
        servers = self._cluster.bootstrap_servers
        return ["--sink", "kafka", "--bootstrap", servers, "--topic", trial.name]

    def rows(self, trial: Path) -> Rows:
        return read_views(self._cluster, trial.name)
