"""Kafka: rows at the limits, topics that change or vanish; an error that says so, or it works."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions

from assent.ledger.local import LocalStore
from assent.protocol.errors import AssentError, ConfigurationError
from assent.protocol.participant import Participant
from assent.protocol.step import Moment, Step, When
from assent.sinks import kafka_producer
from assent.sinks.kafka import KafkaSink
from assent.sinks.kafka_control import KafkaControl
from assent.testing.kafka import KafkaCluster
from assent.testing.query import BatchQuery
from tests.kafka_kit import messages
from tests.kafka_query import KafkaStage
from tests.limits import Obstacle, texts

pytestmark = pytest.mark.kafka

_SECONDS = 30.0

Pair = tuple[bytes | None, bytes | None]


def batch(*rows: Pair, **columns: pa.Array) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch({"key": texts(*keys), "value": texts(*values), **columns})


def values(*rows: bytes | None) -> pa.RecordBatch:
    return batch(*((None, row) for row in rows))


class Stage(KafkaStage):
    """A topic, a query that writes to it, and an administrator."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **more: Any) -> None:
        super().__init__(kafka, partitions=1)
        self.partitions = 1
        self._admin = AdminClient(dict(kafka.settings()))
        self._control = KafkaControl(kafka.settings())
        store = LocalStore(str(folder / "_assent"))
        self.query = BatchQuery(lambda: self.sink(**more), store)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        del self._admin  # which goes on looking for its broker

    def obstacle(self) -> Obstacle:
        return Obstacle(self.query, self.seen, self.open, [[batch((b"k", b"first"))]])

    def seen(self) -> list[Pair]:
        """Keys and values, when every marker has been written."""
        deadline = time.monotonic() + _SECONDS
        while self.open(ending=True):
            assert time.monotonic() < deadline
        found = messages(self.kafka.settings(), self.topic, self.partitions)
        pairs: list[Pair] = [(message.key(), message.value()) for message in found]
        return sorted(pairs, key=repr)

    def open(self, ending: bool = False) -> list[str]:
        """The transactions of this query that are open, or are being ended."""
        from assent.sinks.kafka_verdict import State

        states = {State.PREPARE_COMMIT, State.PREPARE_ABORT} if ending else {State.ONGOING}
        sink = self.query.sink()
        assert isinstance(sink, KafkaSink)
        return [found.transactional_id for found in self._control.transactions("assent-", states)]

    # What an administrator does.

    def limit(self, size: int) -> None:
        entry = ConfigEntry(
            "max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        self._done(self._admin.incremental_alter_configs([resource]))

    def grow(self, partitions: int) -> None:
        self._done(self._admin.create_partitions([NewPartitions(self.topic, partitions)]))
        self.partitions = partitions

    def vanish(self) -> None:
        self._done(self._admin.delete_topics([self.topic]))
        deadline = time.monotonic() + _SECONDS
        while self.topic in self._admin.list_topics(timeout=_SECONDS).topics:
            assert time.monotonic() < deadline

    @staticmethod
    def _done(futures: dict[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.result(_SECONDS)


@pytest.fixture
def stage(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kafka_producer, "TOPIC_SECONDS", 1.0)
    with Stage(kafka, tmp_path) as made:
        yield made


FIRST: Pair = (b"k", b"first")


def test_empty_odd_and_null_bytes_arrive_as_they_are(stage: Stage) -> None:
    rows: list[Pair] = [
        (None, b""),
        (b"", b""),
        (None, None),
        (b"\0", b"a\0b"),
        (b"\xff\xfe", b"\xc3\x28"),  # not UTF-8
    ]
    obstacle = stage.obstacle()
    tasks = [[batch(*rows[:2]), batch()], [], [batch()], [batch(*rows[2:])]]
    obstacle.goes_on(tasks, sorted([FIRST, *rows], key=repr))


def test_invalid_texts_in_json_name_their_column(stage: Stage) -> None:
    stage.query = BatchQuery(lambda: stage.sink(value_format="json", value_columns=["value"]))
    obstacle = stage.obstacle()
    bad, good = [[values(b"a")], [values(b"\xc3\x28")]], [[values(b"a")], [values(b"b")]]
    obstacle.refuses(bad, "column 'value' holds a text that is not UTF-8")
    expected = [(None, b'{"value":"a"}'), (None, b'{"value":"b"}'), (b"k", b'{"value":"first"}')]
    obstacle.goes_on(good, sorted(expected, key=repr))


def test_ten_thousand_columns(stage: Stage) -> None:
    wide = pa.record_batch({f"c{number}": [number] for number in range(10_000)})
    sink = stage.sink(value_format="json")
    sink.check(wide.schema)
    stage.query = BatchQuery(lambda: stage.sink(value_format="json"))
    stage.query.run(stage.query.start(), 0, [[wide]])
    ((_, value),) = stage.seen()
    assert json.loads(value or b"") == {f"c{number}": number for number in range(10_000)}


def test_no_columns_at_all(stage: Stage) -> None:
    for value_format, message in (("raw", "no column 'value'"), ("json", "no column is left")):
        with pytest.raises(ConfigurationError, match=message):
            stage.sink(value_format=value_format).check(pa.schema([]))


def test_values_beside_the_limit_are_written_or_refused_before_they_are_sent(stage: Stage) -> None:
    stage.limit(10_000)
    query, coordinator = stage.query, stage.query.start()
    written: list[int] = []
    refused: list[str] = []
    epoch = 0
    for size in range(9_800, 10_050, 25):
        try:
            query.run(coordinator, epoch, [[values(b"x" * size)]])
        except AssentError as error:
            refused.append(str(error))
            coordinator = query.start()
        else:
            written.append(size)
            epoch += 1
    # By the client's own check, not by the broker's: that would end the transaction.
    assert refused
    assert all("larger than kafka.message.max.bytes, 9939" in each for each in refused)
    assert written == list(range(9_800, written[-1] + 1, 25))
    assert written[-1] < 9_940
    assert [len(value or b"") for _, value in stage.seen()] == written
    assert stage.open() == []


def test_a_megabyte_is_written_when_the_topic_takes_it(stage: Stage) -> None:
    """The limit that a process has seen is forgotten when a task fails over it."""
    stage.limit(500_000)
    obstacle = stage.obstacle()
    large = b"x" * 1_000_000
    tasks = [[values(b"small")], [values(large)]]
    obstacle.refuses(tasks, f"topic '{stage.topic}', partition 0, key none, 1000000 bytes")
    stage.limit(1_048_588)
    obstacle.goes_on(tasks, sorted([FIRST, (None, b"small"), (None, large)], key=repr))


def test_a_row_made_smaller_is_written(stage: Stage) -> None:
    obstacle = stage.obstacle()
    obstacle.refuses([[values(b"a")], [values(b"x" * 1_100_000)]], "1100000 bytes: it is larger")
    expected: list[Pair] = [FIRST, (None, b"a"), (None, b"y")]
    obstacle.goes_on([[values(b"a")], [values(b"y")]], sorted(expected, key=repr))


@pytest.mark.parametrize("partition", [1, 2**31 - 1, -1, -(2**31)])
def test_a_partition_that_is_not_there(stage: Stage, partition: int) -> None:
    obstacle = stage.obstacle()

    def tasks(number: int) -> Sequence[Sequence[pa.RecordBatch]]:
        asked = pa.array([0, number], pa.int32())
        return [[batch((b"a", b"1"), (b"b", b"2"), partition=asked)]]

    obstacle.refuses(tasks(partition), f"topic '{stage.topic}'", "the topic has 0 to 0")
    if partition == 1:
        stage.grow(2)
    mended = partition if partition == 1 else 0
    obstacle.goes_on(tasks(mended), sorted([FIRST, (b"a", b"1"), (b"b", b"2")], key=repr))


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 1e300, -1.0])
def test_a_time_that_is_none(stage: Stage, time: float) -> None:
    obstacle = stage.obstacle()
    times = [pa.array([each], pa.float64()) for each in (time, 1_750_000_000.5)]
    bad, good = ([[batch((b"a", b"1"), timestamp=each)]] for each in times)
    obstacle.refuses(bad, "a row has (a|the) timestamp")
    obstacle.goes_on(good, sorted([FIRST, (b"a", b"1")], key=repr))


# A topic that vanishes: what it held is gone with it, and nothing is half-written.


def test_a_topic_that_is_gone_before_the_epoch(stage: Stage) -> None:
    obstacle = stage.obstacle()
    stage.vanish()
    obstacle.seen = list
    obstacle.refuses([[values(b"a")]], f"topic '{stage.topic}'", visible=[])
    obstacle.seen = stage.seen
    stage.kafka.create_topic(stage.topic)
    obstacle.goes_on([[values(b"a")]], [(None, b"a")])


@pytest.mark.parametrize("when", [When.DURING, When.BEFORE])
def test_a_topic_that_vanishes_while_a_task_writes(stage: Stage, when: When) -> None:
    step = Step.WRITE if when is When.DURING else Step.PRE_COMMIT
    # librdkafka takes half a minute to believe that a topic is gone, which it has known. Once
    # a task took 100 s to fail, about as long as it waits for rows that are neither taken nor
    # refused: half a minute longer than a transaction may last.
    soon = {"topic.metadata.propagation.max.ms": "2000"}
    stage.query = BatchQuery(lambda: stage.sink(client=soon, transaction_timeout=10.0))
    obstacle = stage.obstacle()
    query, gone = stage.query, False

    def trace(moment: Moment) -> None:
        nonlocal gone
        if (moment.when, moment.step) == (when, step) and not gone:
            gone = True
            stage.vanish()

    coordinator = query.start()
    assignment = query.plan(coordinator, 1)
    participant = Participant([query.sink()], assignment, trace=trace)
    batches = [values(b"a"), values(b"b")]
    try:
        participant.vote(1, 0, 0, batches)
    except AssentError as error:
        refused = str(error)
    else:
        refused = stage.topic  # all of it was delivered before, and went with the topic
    assert gone
    assert stage.topic in refused
    stage.kafka.create_topic(stage.topic)
    obstacle.goes_on([batches], [(None, b"a"), (None, b"b")])


def test_a_topic_that_vanishes_before_the_commit_does_not_hold_the_query_up(stage: Stage) -> None:
    """Its rows are gone with it, by whoever deleted it; the epoch ends and the next is written."""
    query, coordinator = stage.query, stage.query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[values(b"a")]])
    stage.vanish()
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    stage.kafka.create_topic(stage.topic)
    query.run(coordinator, 1, [[values(b"b")]])
    assert stage.seen() == [(None, b"b")]
    assert stage.open() == []
