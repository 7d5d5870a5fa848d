"""The stage of the Kafka sink: a real broker, and a topic for each trial."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from assent.sinks.kafka_control import KafkaControl
from assent.testing.job import BUILT_IN, sink_argument
from assent.testing.kafka import Broker, KafkaCluster
from assent.testing.kafka_views import CommittedReader, read_views
from assent.testing.reader import Rows
from assent.testing.stage import Stage, Watch

_LOOK_SECONDS = 0.2


class KafkaStage(Stage):
    """One broker for all trials; or one that is there already, and stays."""

    name = "kafka"
    expires = True

    def __init__(
        self,
        cluster: KafkaCluster | None = None,
        *,
        proxied: bool = False,
        transaction_timeout: str = "5m",
    ) -> None:
        self.cluster = cluster or KafkaCluster(
            proxied=proxied,
            properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"},
        )
        self.proxied = proxied
        self._owned = cluster is None
        self._transaction_timeout = transaction_timeout

    def start(self) -> None:
        if self._owned:
            self.cluster.start()

    def stop(self) -> None:
        if self._owned:
            self.cluster.close()

    def prepare(self, trial: str) -> Sequence[str]:
        self.cluster.create_topic(trial, partitions=2)
        options = {
            **self._address(),
            "topic": trial,
            "valueFormat": "json",
            "keyColumns": "user",
            "valueColumns": "partition,offset,app,page",
            "transactionTimeout": self._transaction_timeout,
        }
        return sink_argument("kafka", options)

    def rows(self, trial: str) -> Rows:
        return read_views(self.cluster, trial)

    def pending(self, trial: str) -> list[str]:
        with KafkaControl(self.cluster.settings()) as control:
            return [found.transactional_id for found in control.transactions("assent-")]

    def expire(self, trial: str) -> None:
        """By the broker's own timeout: wait for it."""
        while self.pending(trial):
            time.sleep(_LOOK_SECONDS)

    @property
    def servers(self) -> Sequence[Broker]:
        return [self.cluster.broker(1)]

    def watch(self, trial: str) -> Watch:
        return KafkaWatch(self, trial)

    def _address(self) -> dict[str, str]:
        if not self.proxied:
            return {"kafka.bootstrap.servers": self.cluster.bootstrap_servers}
        self.proxies[:] = self.cluster.proxies
        return {"kafka.bootstrap.servers": self.cluster.proxied_servers}


class BuiltInStage(KafkaStage):
    """Spark's own Kafka sink, for comparison: at least once."""

    name = BUILT_IN
    expires = False

    def prepare(self, trial: str) -> Sequence[str]:
        self.cluster.create_topic(trial, partitions=2)
        return sink_argument(BUILT_IN, {**self._address(), "topic": trial})


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
