"""A transaction that has ended, and a partition that was not told: on real brokers of both lines.

No broker leaves a marker out on demand. A row that comes late into a partition, after the end of
its transaction, is in the same state: open there, and ended for its coordinator. Brokers refuse
such rows unless they are told not to look. (How a broker leaves one out by itself is seen in
test_pipeline, where it is killed at every step.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kafka.protocol.producer import ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from assent.protocol.errors import InDoubtError, RetriableError
from assent.protocol.name import nonce
from assent.sinks import kafka_markers
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_connection import Address, Connection
from assent.sinks.kafka_control import KafkaControl
from assent.sinks.kafka_markers import Ended
from assent.testing.kafka import KafkaCluster
from tests.kafka_kit import Open, await_visible, open_transaction, open_transactions, visible
from tests.plugins.kafka import require_kafka

pytestmark = pytest.mark.kafka

_VERSION = 8  # the last before AddPartitionsToTxn is part of it, and before the flexible ones


@pytest.fixture(scope="module", params=["newest", "before"])
def cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    lenient = {"transaction.partition.verification.enable": "false"}
    with require_kafka(request.param, properties=lenient) as made:
        yield made


class Stage:
    """Two topics: what is written in time, and what comes late."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self.topic, self.late = (f"{kind}-{nonce()}" for kind in ("topic", "late"))
        self.prefix = f"assent-{nonce()}-"
        self.control = KafkaControl(kafka.settings(), timeout=10)
        for topic in (self.topic, self.late):
            kafka.create_topic(topic)

    def open(self, *rows: str, name: str = "0", topic: str | None = None) -> Open:
        return open_transaction(
            self.kafka.settings(), self.prefix + name, topic or self.topic, rows
        )

    def end(self, opened: Open, *, commit: bool) -> Ended:
        """End it; what was written of it is the first topic, and what it is said to have, both."""
        (self.control.commit if commit else self.control.abort)(*opened.handle)
        return self.ended(opened, commit=commit)

    def ended(self, opened: Open, *, commit: bool) -> Ended:
        producer = ProducerIdentity(opened.producer_id, opened.producer_epoch)
        partitions = {self.topic: (0,), self.late: (0,)}
        return Ended(opened.transactional_id, producer, commit, partitions)

    def send_late(self, opened: Open, row: str) -> None:
        """One more row of that producer, although its transaction has ended."""
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=True,
            producer_id=opened.producer_id,
            producer_epoch=opened.producer_epoch,
            base_sequence=0,
            batch_size=100_000,
        )
        builder.append(
            0, timestamp=int(time.time() * 1000), key=None, value=row.encode(), headers=[]
        )
        data = ProduceRequest.TopicProduceData
        place = data.PartitionProduceData(index=0, records=bytes(builder.build()))
        request = ProduceRequest(
            version=_VERSION,
            transactional_id=opened.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[data(name=self.late, partition_data=[place])],
        )

        def make(connection: Connection) -> ProduceRequest:
            return request

        address = Address("127.0.0.1", self.kafka.brokers[0].port)
        answer = self.control.brokers.ask(address, make, time.monotonic() + 10)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def seen_late(self) -> list[str]:
        return visible(self.kafka.settings(), self.late)


@pytest.fixture
def stage(cluster: KafkaCluster) -> Iterator[Stage]:
    made = Stage(cluster)
    yield made
    made.control.close()


def test_a_commit_without_its_marker_is_shown(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    opened = stage.open("a")
    ended = stage.end(opened, commit=True)
    stage.send_late(opened, "b")
    stage.open("c", name="1", topic=stage.late)
    assert stage.seen_late() == []
    stage.control.confirm([ended])
    assert stage.seen_late() == ["b"]
    assert "left out the marker" in caplog.text
    caplog.clear()
    stage.control.confirm([ended])
    assert not caplog.text
    assert stage.seen_late() == ["b"]


def test_an_abort_without_its_marker_holds_no_reader_back(stage: Stage) -> None:
    opened = stage.open("a")
    ended = stage.end(opened, commit=False)
    stage.send_late(opened, "b")
    after = stage.open("c", name="1", topic=stage.late)
    stage.control.commit(*after.handle)
    assert stage.seen_late() == []
    stage.control.confirm([ended])
    await_visible(stage.kafka.settings(), stage.late, "c")


def test_what_the_producer_sends_after_the_marker_is_refused(stage: Stage) -> None:
    """As after a marker of the coordinator's, where ending a transaction raises the epoch."""
    if stage.control.brokers.cluster().transaction_version < 2:
        pytest.skip("ending a transaction leaves the epoch as it is")
    opened = stage.open("a")
    ended = stage.end(opened, commit=True)
    stage.send_late(opened, "b")
    stage.control.confirm([ended])
    with pytest.raises(AssertionError):
        stage.send_late(opened, "too late")


def test_markers_that_are_on_their_way_are_awaited(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{stage.prefix}{number}" for number in range(20)]
    for opened in open_transactions(stage.kafka.settings(), names, stage.topic, ["a"]):
        stage.control.confirm([stage.end(opened, commit=True)])
    # All of them: of the last there is no doubt when the call returns.
    assert len(visible(stage.kafka.settings(), stage.topic)) == len(names)
    assert not caplog.text


def test_the_other_end_is_never_written(stage: Stage) -> None:
    opened = stage.open("a")
    stage.end(opened, commit=False)
    stage.send_late(opened, "b")
    with pytest.raises(InDoubtError, match=r"counts as committed here, but .* says aborted"):
        stage.control.confirm([stage.ended(opened, commit=True)])
    stage.control.confirm([stage.ended(opened, commit=False)])
    assert stage.seen_late() == []


def test_an_open_transaction_is_not_ended(stage: Stage) -> None:
    opened = stage.open("a")
    with pytest.raises(InDoubtError, match="says pending"):
        stage.control.confirm([stage.ended(opened, commit=True)])
    stage.control.commit(*opened.handle)
    await_visible(stage.kafka.settings(), stage.topic, "a")


def test_a_later_transaction_of_the_producer_is_let_alone(stage: Stage) -> None:
    ended = stage.end(stage.open("a"), commit=True)
    later = stage.open("b")
    assert later.producer_id == ended.producer.producer_id
    stage.control.confirm([ended])
    assert visible(stage.kafka.settings(), stage.topic) == ["a"]
    stage.control.abort(*later.handle)
    stage.control.confirm([ended, stage.ended(later, commit=False)])
    assert visible(stage.kafka.settings(), stage.topic) == ["a"]


def test_a_topic_that_is_gone_is_left_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_markers, "_GONE_SECONDS", 0.5)
    ended = stage.end(stage.open("a"), commit=True)
    started = time.monotonic()
    stage.control.confirm([Ended(ended.transactional_id, ended.producer, True, {"none": (0,)})])
    # Not at once: a broker that has just started may know it a moment later.
    assert time.monotonic() - started >= 0.5


def test_nothing_to_confirm(stage: Stage) -> None:
    stage.control.confirm([])


def test_a_broker_that_is_away(stage: Stage) -> None:
    ended = stage.end(stage.open("a"), commit=True)
    quick = {"socket.connection.setup.timeout.ms": "1000"}
    control = KafkaControl(stage.kafka.settings() | quick, timeout=1)
    stage.kafka.brokers[0].pause()
    try:
        with pytest.raises(RetriableError, match="could not be made sure of within 1 s"):
            control.confirm([ended])
    finally:
        stage.kafka.brokers[0].resume()
        control.close()


@pytest.mark.faults
def test_a_broker_that_is_killed_right_after_a_commit() -> None:
    """Some of these times it leaves markers out when it is back: then nothing would be seen."""
    with require_kafka() as cluster:
        for _ in range(4):
            stage = Stage(cluster)
            names = [f"{stage.prefix}{number}" for number in range(20)]
            opened = open_transactions(cluster.settings(), names, stage.topic, ["a"])
            ended = [stage.end(each, commit=True) for each in opened]
            cluster.brokers[0].kill()
            cluster.brokers[0].start()
            stage.control.confirm(ended)
            assert len(visible(cluster.settings(), stage.topic)) == len(names)
            stage.control.close()
