"""R13: offsets in a consumer group, of complete epochs only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from assent.ledger.local import LocalStore
from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import nonce
from assent.protocol.policy import Policy
from assent.sinks.files import FilesSink
from assent.sinks.kafka import KafkaSink
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_group import ConsumerGroup, Position
from assent.sinks.kafka_offsets import KafkaOffsets, kafka_positions
from assent.spark.checkpoint import SparkCheckpoint
from assent.spark.offsets import check_offsets, offsets_publisher
from assent.spark.settings import Settings
from assent.testing.kafka import KafkaCluster

QUERY = "5f0c9f9e-0000-4000-8000-000000000001"


class Checkpoint:
    """A checkpoint as Spark writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))

    def epoch(self, number: int, *sources: object, version: str = "v1") -> None:
        lines = [
            version,
            "{}",
            *(source if source == "-" else json.dumps(source) for source in sources),
        ]
        (self.folder / "offsets" / str(number)).write_text("\n".join(lines))

    @property
    def read(self) -> SparkCheckpoint:
        return SparkCheckpoint(LocalStore(str(self.folder)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


# What Spark's offset log says


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([{"views": {"0": 5, "1": 7}}], {("views", 0): 5, ("views", 1): 7}),
        ([{"a": {"0": 1}}, {"b": {"10": 2}}], {("a", 0): 1, ("b", 10): 2}),
        ([{"a": {"0": 9}}, {"a": {"0": 4}}], {("a", 0): 4}),  # two that read one topic
        ([17], {}),  # the rate source
        ([{"logOffset": 3}], {}),  # the files source
        ([{"0": 10, "1": 20}], {}),  # a source in Python
        ([{"sourceVersion": 1, "reservoirId": "x", "index": -1}], {}),
        (["text"], {}),
        ([{}], {}),
    ],
)
def test_kafka_sources_are_told_from_others(
    sources: list[object], expected: dict[tuple[str, int], int]
) -> None:
    assert kafka_positions([json.dumps(source) for source in sources]) == expected


def test_what_is_not_json_is_no_kafka_source() -> None:
    assert kafka_positions(["-", "{broken"]) == {}


def test_the_offset_log_as_spark_writes_it(checkpoint: Checkpoint) -> None:
    checkpoint.epoch(3, {"views": {"0": 5}}, "-", 17)
    assert checkpoint.read.source_offsets(3) == ['{"views": {"0": 5}}', "17"]
    assert checkpoint.read.source_offsets(4) == []


@pytest.mark.parametrize("version", ["v2", "1"])
def test_an_offset_log_of_another_version_is_refused(checkpoint: Checkpoint, version: str) -> None:
    checkpoint.epoch(3, {"views": {"0": 5}}, version=version)
    with pytest.raises(ConfigurationError, match=r"offsets/3 has version .*commitOffsets"):
        checkpoint.read.source_offsets(3)


# Options


def settings(**more: object) -> Settings:
    return Settings("somewhere", Guarantee.EXACTLY_ONCE, Policy(), (), **more)  # type: ignore[arg-type]


def test_nothing_is_published_unless_asked_for() -> None:
    assert offsets_publisher(settings(), [FilesSink("x")]) == []


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (settings(offsets_cluster={"bootstrap.servers": "a:1"}), "commitOffsets is not"),
        (settings(offsets_group="lag"), "commitOffsets.kafka.bootstrap.servers"),
        (
            Settings(
                None, Guarantee.AT_LEAST_ONCE, Policy(), (), "lag", {"bootstrap.servers": "a:1"}
            ),
            "checkpointLocation",
        ),
    ],
)
def test_options_that_do_not_suffice(chosen: Settings, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        offsets_publisher(chosen, [FilesSink("x")])


# On a real broker


@pytest.fixture
def group(kafka_line: KafkaCluster) -> Iterator[ConsumerGroup]:
    brokers = Brokers(kafka_line.settings())
    yield ConsumerGroup(brokers, f"lag-{nonce()}")
    brokers.close()


@pytest.fixture
def topic(kafka_line: KafkaCluster) -> str:
    name = f"views-{nonce()}"
    kafka_line.create_topic(name, partitions=2)
    return name


def offsets(group: ConsumerGroup) -> list[int]:
    found = group.positions()
    return [found[place].offset for place in sorted(found)]


@pytest.mark.kafka
def test_positions_are_what_a_lag_tool_sees(
    kafka_line: KafkaCluster, group: ConsumerGroup, topic: str
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    assert group.positions() == {}
    moved = {(topic, 0): Position(5, "who"), (topic, 1): Position(7)}
    group.move(moved)
    assert group.positions() == moved
    asked = [ConsumerGroupTopicPartitions(group.group)]
    admin = AdminClient(dict(kafka_line.settings()))
    answer = admin.list_consumer_group_offsets(asked)
    seen = answer[group.group].result(30).topic_partitions
    assert sorted((place.partition, place.offset) for place in seen) == [(0, 5), (1, 7)]


@pytest.mark.kafka
def test_complete_epochs_move_the_group_and_late_ones_do_not_move_it_back(
    group: ConsumerGroup, topic: str, checkpoint: Checkpoint
) -> None:
    publisher = KafkaOffsets(group, checkpoint.read)
    for epoch, end in enumerate((5, 9)):
        checkpoint.epoch(epoch, {topic: {"0": end, "1": end + 1}})
    publisher.check(0)
    assert group.positions() == {}
    publisher.on_epoch_complete(0)
    assert offsets(group) == [5, 6]
    publisher.on_epoch_complete(1)
    publisher.on_epoch_complete(1)  # repeated after a crash
    publisher.on_epoch_complete(0)  # a driver that was thought dead
    assert offsets(group) == [9, 10]


@pytest.mark.kafka
def test_another_query_takes_the_group_over(
    group: ConsumerGroup, topic: str, checkpoint: Checkpoint
) -> None:
    """A new checkpoint that starts from the beginning says so, however far the old one was."""
    group.move({(topic, 0): Position(100, "assent another-query 7"), (topic, 1): Position(3)})
    checkpoint.epoch(0, {topic: {"0": 5, "1": 6}})
    KafkaOffsets(group, checkpoint.read).on_epoch_complete(0)
    assert offsets(group) == [5, 6]


@pytest.mark.kafka
def test_a_group_with_members_is_refused(
    kafka_line: KafkaCluster, group: ConsumerGroup, topic: str
) -> None:
    member = Consumer({**kafka_line.settings(), "group.id": group.group})
    assigned: list[object] = []
    member.subscribe([topic], on_assign=lambda consumer, places: assigned.extend(places))
    try:
        while not assigned:
            member.poll(0.1)
        with pytest.raises(ConfigurationError, match="has members of its own"):
            group.move({(topic, 0): Position(5)})
    finally:
        member.close()


@pytest.mark.kafka
def test_a_query_without_a_kafka_source_is_told_before_a_row_is_written(
    kafka_line: KafkaCluster, checkpoint: Checkpoint
) -> None:
    checkpoint.epoch(0, 17)
    chosen = Settings(
        str(checkpoint.folder), Guarantee.EXACTLY_ONCE, Policy(), (), f"lag-{nonce()}"
    )
    sink = KafkaSink(kafka_line.settings(), topic="views")
    with pytest.raises(ConfigurationError, match="no source of this query is Kafka"):
        check_offsets(chosen, offsets_publisher(chosen, [sink]))
