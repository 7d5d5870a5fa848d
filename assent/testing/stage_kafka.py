"""The stage of the Kafka sink: a real broker, and a topic for each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assent.sinks.kafka_control import KafkaControl
from assent.testing.job import sink_argument
from assent.testing.kafka import Broker, KafkaCluster
from assent.testing.kafka_views import CommittedReader, read_views
from assent.testing.reader import Rows
from assent.testing.stage import Stage, Watch


class KafkaStage(Stage):
    """One broker for all trials; or one that is there already, and stays."""

    name = "kafka"

    def __init__(self, cluster: KafkaCluster | None = None) -> None:
        self.cluster = cluster or KafkaCluster()
        self._owned = cluster is None

    def start(self) -> None:
        if self._owned:
            self.cluster.start()

    def stop(self) -> None:
        if self._owned:
            self.cluster.close()

    def prepare(self, trial: str) -> Sequence[str]:
        self.cluster.create_topic(trial, partitions=2)
        options = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "topic": trial,
            "valueFormat": "json",
            "keyColumns": "user",
            "valueColumns": "partition,offset,app,page",
            "transactionTimeout": "5m",
        }
        return sink_argument("kafka", options)

    def rows(self, trial: str) -> Rows:
        return read_views(self.cluster, trial)

    def pending(self, trial: str) -> list[str]:
        with KafkaControl(self.cluster.settings()) as control:
            return [found.transactional_id for found in control.transactions("assent-")]

    @property
    def servers(self) -> Sequence[Broker]:
        return [self.cluster.broker(1)]

    def watch(self, trial: str) -> Watch:
        return KafkaWatch(self, trial)


class KafkaWatch(Watch):
    """Reads on from where it was, instead of from the beginning each time."""

    def __init__(self, stage: KafkaStage, trial: str) -> None:
        super().__init__(stage, trial)
        self._reader = CommittedReader(stage.cluster, trial)

    def _run(self) -> None:
        with self._reader as reader:
            stopped = False
            while not stopped:
                stopped = self._stopped.wait(0.2)
                with self._changed:
                    # It may be behind whoever reads from the beginning; nothing is gone by that.
                    self._judge(reader.seen(), Counter())
