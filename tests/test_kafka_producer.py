"""The producer of a task against a real broker, both ways of reaching librdkafka."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.sinks import kafka_library, kafka_producer
from assent.sinks.kafka_client import Failure, ProducerIdentity, Reports, shown_key
from assent.sinks.kafka_native import NativeClient
from assent.sinks.kafka_partitioner import Partitioner
from assent.sinks.kafka_plain import PlainClient
from assent.sinks.kafka_producer import CLIENT_VARIABLE, TaskProducer, connect
from assent.sinks.kafka_records import HEADERS, Records
from assent.sinks.kafka_settings import producer_settings
from assent.testing.kafka import KafkaCluster

_NUMBERS = itertools.count()
EXACTLY_ONCE = Guarantee.EXACTLY_ONCE


@pytest.fixture(params=["native", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Stage:
    """A broker with topics for one test, and what stands in them."""

    def __init__(self, kafka: KafkaCluster, kind: str) -> None:
        self.kafka = kafka
        self.kind = kind

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = f"producer-{next(_NUMBERS)}"
        self.kafka.create_topic(name, partitions, **config)
        return name

    def producer(
        self,
        guarantee: Guarantee = EXACTLY_ONCE,
        *,
        transactional_id: str | None = None,
        options: dict[str, str] | None = None,
        topic_limit: int | None = None,
        **more: Any,
    ) -> TaskProducer:
        name = transactional_id or f"id-{next(_NUMBERS)}"
        given = {**self.kafka.settings(), **(options or {})}
        settings = producer_settings(given, guarantee, name, topic_limit)
        client = connect(settings, kind=self.kind)
        limit = int(settings["message.max.bytes"])
        producer = TaskProducer(client, guarantee, message_bytes=limit, **more)
        producer.begin()
        return producer

    def records(self, topic: str, *, committed: bool = True) -> list[ck.Message]:
        """Everything in a topic, as far as a reader sees it now."""
        consumer = ck.Consumer(
            {
                **self.kafka.settings(),
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
            consumer.assign([ck.TopicPartition(topic, number, 0) for number in partitions])
            found: list[ck.Message] = []
            ended: set[int | None] = set()
            while len(ended) < len(partitions):
                message = consumer.poll(20)
                assert message is not None, "the broker does not answer"
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == ck.KafkaError._PARTITION_EOF
                    ended.add(message.partition())
            return found
        finally:
            consumer.close()

    def values(self, topic: str, *, committed: bool = True) -> list[bytes | None]:
        return [message.value() for message in self.records(topic, committed=committed)]

    def transaction(self, name: str) -> tuple[str, int, int]:
        """What the broker says of a transactional id: state, producer id, epoch."""
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
        try:
            found = admin.describe_transactions([name])[name]
            return found.state.value, found.producer_id, found.producer_epoch
        finally:
            admin.close()

    def end(self, name: str) -> None:
        """Abort what is open under an id, so that nothing holds readers back."""
        settings = {**self.kafka.settings(), "transactional.id": name}
        ck.Producer(settings).init_transactions(30)


@pytest.fixture
def stage(kafka: KafkaCluster, kind: str) -> Stage:
    return Stage(kafka, kind)


def _write_all(producer: TaskProducer, records: Records) -> None:
    producer.write(records)
    producer.finish()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# Transactions.


@pytest.mark.kafka
def test_a_finished_transaction_stays_open_and_is_named_by_its_identity(
    kafka_line: KafkaCluster, kind: str
) -> None:
    stage = Stage(kafka_line, kind)
    topic, name = stage.topic(), f"open-{next(_NUMBERS)}"
    for turn in range(2):
        with stage.producer(transactional_id=name) as producer:
            producer.write(Records(topic, pa.array([b"a", b"b"])))
            identity = producer.finish()
            assert identity is not None
            assert producer.rows == 2
        gc.collect()
        # The second turn aborts the first, and has an epoch of its own: a handle is never reused.
        assert stage.transaction(name) == ("Ongoing", identity.producer_id, identity.epoch)
        assert stage.values(topic) == []
        assert len(stage.values(topic, committed=False)) == 2 * (turn + 1)
    stage.end(name)
    assert stage.values(topic) == []


@pytest.mark.kafka
def test_closing_leaves_no_threads_sockets_or_memory(stage: Stage) -> None:
    topic = stage.topic()

    def once() -> None:
        name = f"closed-{next(_NUMBERS)}"
        with stage.producer(transactional_id=name) as producer:
            producer.write(Records(topic, pa.array([b"x" * 1000] * 1000)))
            producer.finish()
        stage.end(name)

    once()
    before = (threads(), len(os.listdir("/proc/self/fd")), _resident())
    for _ in range(5):
        once()
    after = (threads(), len(os.listdir("/proc/self/fd")), _resident())
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + 4
    assert after[2] - before[2] < 10_000_000


@pytest.mark.kafka
def test_a_producer_that_is_forgotten_leaves_its_transaction_open_too(stage: Stage) -> None:
    topic, name = stage.topic(), f"forgotten-{next(_NUMBERS)}"
    before = threads()
    producer = stage.producer(transactional_id=name)
    producer.write(Records(topic, pa.array([b"a"])))
    producer.finish()
    del producer
    gc.collect()
    assert threads() <= before
    assert stage.transaction(name)[0] == "Ongoing"
    stage.end(name)


@pytest.mark.kafka
def test_giving_up_in_the_middle_does_not_hang(stage: Stage) -> None:
    topic, name = stage.topic(), f"given-up-{next(_NUMBERS)}"
    with stage.producer(transactional_id=name) as producer:
        producer.write(Records(topic, pa.array([b"x" * 100] * 50_000)))
    with pytest.raises(ValueError, match="closed"):
        producer.finish()
    producer.close()
    stage.end(name)


@pytest.mark.kafka
def test_another_producer_of_the_same_id_fences_this_one(stage: Stage) -> None:
    topic, name = stage.topic(), f"fenced-{next(_NUMBERS)}"
    with stage.producer(transactional_id=name) as producer:
        producer.write(Records(topic, pa.array([b"a"])))
        producer.finish()
        stage.end(name)
        with pytest.raises(RetriableError):
            _write_all(producer, Records(topic, pa.array([b"b"])))
    assert stage.values(topic) == []


@pytest.mark.kafka
def test_a_broker_that_is_not_there(stage: Stage) -> None:
    settings = producer_settings({"bootstrap.servers": "127.0.0.1:1"}, EXACTLY_ONCE, "id")
    client = connect(settings, kind=stage.kind)
    with (
        TaskProducer(client, EXACTLY_ONCE, transaction_timeout=1.5, message_bytes=1) as producer,
        pytest.raises(RetriableError, match=r"no transaction could be opened.*refused"),
    ):
        producer.begin()


# Records.


@pytest.mark.kafka
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_transaction_rows_are_there_at_once(stage: Stage, guarantee: Guarantee) -> None:
    topic = stage.topic()
    with stage.producer(guarantee) as producer:
        producer.write(Records(topic, pa.array([b"a", b"b", b"c"])))
        assert producer.finish() is None
    assert stage.values(topic) == [b"a", b"b", b"c"]


@pytest.mark.kafka
@pytest.mark.parametrize("guarantee", Guarantee)
def test_the_last_rows_do_not_linger(stage: Stage, guarantee: Guarantee) -> None:
    topic = stage.topic()
    options = {"linger.ms": "50000"}
    with stage.producer(guarantee, options=options, transaction_timeout=10.0) as producer:
        producer.write(Records(topic, pa.array([b"a", b"b"])))
        producer.finish()
    assert len(stage.records(topic, committed=False)) == 2


@pytest.mark.kafka
def test_every_part_of_a_record_arrives(stage: Stage) -> None:
    topic = stage.topic(partitions=3)
    headers = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "é", "value": b""}],
        None,
        [],
        [{"key": "b", "value": b"\0\xff"}],
    ]
    records = Records(
        topic,
        pa.array(["värde", None, "", "v" * 1000]),
        pa.array([b"k", b"", None, b"\xff\0"]),
        np.array([2, 0, 0, 1], np.int32),
        np.array([1_700_000_000_123, 0, 5, 1_600_000_000_000]),
        pa.array(headers, HEADERS),
    )
    with stage.producer(Guarantee.AT_LEAST_ONCE) as producer:
        producer.write(records)
        producer.finish()
    found = {(m.partition(), m.offset()): m for m in stage.records(topic)}
    first, second, third, fourth = (found[at] for at in ((2, 0), (0, 0), (0, 1), (1, 0)))
    assert (first.key(), first.value()) == (b"k", "värde".encode())
    assert (second.key(), second.value()) == (b"", None)
    assert (third.key(), third.value()) == (None, b"")
    assert (fourth.key(), fourth.value()) == (b"\xff\0", b"v" * 1000)
    assert first.timestamp() == (ck.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert second.timestamp()[1] > 1_700_000_000_123
    assert third.timestamp()[1] == 5
    assert first.headers() == [("a", b"1"), ("a", None), ("é", b"")]
    assert not second.headers()
    assert not third.headers()
    assert fourth.headers() == [("b", b"\0\xff")]


@pytest.mark.kafka
@pytest.mark.parametrize("with_times", [False, True])
def test_many_rows_go_by_key_and_keep_their_order(stage: Stage, with_times: bool) -> None:
    topic = stage.topic(partitions=3)
    count = 30_000
    keys = pa.array([None if number % 7 == 0 else f"k{number % 50}" for number in range(count)])
    values = pa.array([str(number) for number in range(count)], pa.large_string())
    times = np.arange(1, count + 1) if with_times else None
    # A small queue, so that it is full again and again.
    with stage.producer(options={"queue.buffering.max.messages": "1000"}) as producer:
        name = f"id-{next(_NUMBERS) - 1}"
        producer.write(Records(topic, values.slice(0, 10_000), keys.slice(0, 10_000)))
        rest = None if times is None else times[10_000:]
        producer.write(Records(topic, values.slice(10_000), keys.slice(10_000), timestamps=rest))
        producer.finish()
        assert producer.rows == count
    found = stage.records(topic, committed=False)
    assert sorted(int(m.value() or b"") for m in found) == list(range(count))
    for partition in range(3):
        numbers = [int(m.value() or b"") for m in found if m.partition() == partition]
        assert numbers == sorted(numbers)
    texts = pa.array({key for m in found if (key := m.key()) is not None})
    expected = dict(
        zip(texts.to_pylist(), Partitioner().place(topic, 3, texts, texts).tolist(), strict=True)
    )
    assert all(expected[m.key()] == m.partition() for m in found if m.key() is not None)
    stage.end(name)


@pytest.mark.kafka
def test_librdkafka_agrees_on_the_partition_of_a_key(stage: Stage) -> None:
    topic = stage.topic(partitions=7)
    keys = [f"key-{number}" for number in range(300)]
    with stage.producer(Guarantee.AT_LEAST_ONCE) as producer:
        producer.write(Records(topic, pa.array(keys), pa.array(keys)))
        producer.finish()
    other = ck.Producer({**stage.kafka.settings(), "partitioner": "murmur2"})
    for key in keys:
        other.produce(topic, key, key)
    other.flush(30)
    places: dict[bytes | None, set[int | None]] = {}
    for message in stage.records(topic):
        places.setdefault(message.key(), set()).add(message.partition())
    assert all(len(place) == 1 for place in places.values())
    assert len({min(place, key=str) for place in places.values()}) > 1


# Rows that cannot be written.


@pytest.fixture
def refused(stage: Stage) -> dict[str, tuple[Records, str]]:
    topic = stage.topic(partitions=2)
    keys = pa.array(["k1", "k2", "k3"])
    large = pa.array([b"a", b"x" * 3_000_000, b"b"])
    values = pa.array([b"a", b"bb", b"c"])
    absent = f"absent-{next(_NUMBERS)}"
    return {
        "large": (
            Records(topic, large, keys),
            rf"topic '{topic}', partition \d, key 'k2', 3000002 bytes: it is larger than "
            r"kafka.message.max.bytes, 1048515 \(MSG_SIZE_TOO_LARGE\)",
        ),
        "large with time": (
            Records(topic, large, keys, timestamps=np.array([1, 2, 3])),
            rf"topic '{topic}', partition \d, key 'k2', 3000002 bytes: it is larger than",
        ),
        "partition": (
            Records(topic, values, keys, np.array([0, 2, 1], np.int32)),
            rf"topic '{topic}', partition 2, key 'k2', 4 bytes: there is no such partition: the "
            r"topic has 0 to 1",
        ),
        "topic": (
            Records(absent, values.slice(1, 1), keys.slice(1, 1)),
            rf"topic '{absent}', key 'k2', 4 bytes: there is no such topic",
        ),
    }


REASONS = ("large", "large with time", "partition", "topic")


@pytest.mark.kafka
@pytest.mark.parametrize("reason", REASONS)
def test_a_refused_row_fails_the_task_and_is_named(
    stage: Stage,
    refused: dict[str, tuple[Records, str]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_producer, "TOPIC_SECONDS", 0.3)
    records, message = refused[reason]
    name = f"refused-{next(_NUMBERS)}"
    with (
        stage.producer(transactional_id=name) as producer,
        pytest.raises(AssentError, match=f"{message}.*deadLetterTopic"),
    ):
        producer.write(records)
    stage.end(name)


@pytest.mark.kafka
@pytest.mark.parametrize("reason", REASONS)
def test_a_refused_row_goes_to_the_dead_letter_topic(
    stage: Stage,
    refused: dict[str, tuple[Records, str]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_producer, "TOPIC_SECONDS", 0.3)
    records, _ = refused[reason]
    letters = stage.topic()
    with stage.producer(Guarantee.AT_LEAST_ONCE, dead_letter_topic=letters) as producer:
        producer.write(records)
        producer.finish()
        assert (producer.rows, producer.dead_letters) == (len(records), 1)
    (letter,) = stage.records(letters)
    headers = dict(letter.headers() or [])
    assert letter.key() == b"k2"
    assert headers["assent.topic"] == records.topic.encode()
    if reason.startswith("large"):
        assert headers["assent.bytes"] == b"3000002"
        assert headers["assent.error"] == b"MSG_SIZE_TOO_LARGE"
        assert headers["assent.truncated"] == b"true"
        assert 1_000_000 < len(letter.value() or b"") < 1_048_576
    else:
        assert letter.value() == b"bb"
        assert "assent.truncated" not in headers
    if reason != "topic":
        assert {m.key() for m in stage.records(records.topic)} == {b"k1", b"k3"}


@pytest.mark.kafka
def test_dead_letters_are_in_the_same_transaction(stage: Stage) -> None:
    topic, letters, name = stage.topic(), stage.topic(), f"letters-{next(_NUMBERS)}"
    records = Records(topic, pa.array([b"a", b"b"]), None, np.array([0, 9], np.int32))
    with stage.producer(transactional_id=name, dead_letter_topic=letters) as producer:
        producer.write(records)
        producer.finish()
    assert (stage.values(topic), stage.values(letters)) == ([], [])
    assert stage.values(letters, committed=False) == [b"b"]
    stage.end(name)


@pytest.mark.kafka
def test_what_only_the_broker_refuses_fails_the_task_whatever_the_options(stage: Stage) -> None:
    topic, letters = stage.topic(max_message_bytes="2000"), stage.topic()
    records = Records(topic, pa.array([b"a", b"x" * 3000, b"b"]), pa.array(["k1", "k2", "k3"]))
    for guarantee in (EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
        name = f"broker-{next(_NUMBERS)}"
        with (
            stage.producer(guarantee, transactional_id=name, dead_letter_topic=letters) as producer,
            pytest.raises(RetriableError) as caught,
        ):
            _write_all(producer, records)
        text = str(caught.value)
        assert f"topic '{topic}', partition 0, key 'k2', 3002 bytes" in text
        assert "max.message.bytes" in text
    assert stage.values(topic) == []


@pytest.mark.kafka
def test_with_the_limit_of_the_topic_known_it_is_refused_before_it_is_sent(stage: Stage) -> None:
    topic, letters = stage.topic(max_message_bytes="2000"), stage.topic()
    rows = [b"x" * 100] * 200
    records = Records(topic, pa.array([*rows, b"x" * 3000]))
    producer = stage.producer(Guarantee.AT_LEAST_ONCE, topic_limit=2000, dead_letter_topic=letters)
    with producer:
        producer.write(records)
        producer.finish()
    # Batches of small rows, too, stay below it.
    assert stage.values(topic) == rows
    assert len(stage.values(letters)) == 1


@pytest.mark.kafka
def test_none_does_not_look_at_what_arrives(stage: Stage) -> None:
    topic = stage.topic(max_message_bytes="2000")
    with stage.producer(Guarantee.NONE) as producer:
        producer.write(Records(topic, pa.array([b"x" * 3000])))
        assert producer.finish() is None
    assert stage.values(topic) == []


# Memory.


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


_PUSH = """
import resource, sys
import pyarrow as pa
from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_producer import TaskProducer, connect
from assent.sinks.kafka_records import Records
from assent.sinks.kafka_settings import producer_settings

servers, topic, kind, size, batches = sys.argv[1:]
settings = producer_settings({"bootstrap.servers": servers}, Guarantee.AT_LEAST_ONCE)
limit = int(settings["message.max.bytes"])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with TaskProducer(connect(settings, kind=kind), Guarantee.AT_LEAST_ONCE, message_bytes=limit) as p:
    rows = 10_000_000 // int(size)
    values = pa.array([bytes(int(size))] * rows)
    p.write(Records(topic, values.slice(0, 1)))
    before = peak()
    for _ in range(int(batches)):
        p.write(Records(topic, values))
    p.finish()
    print(p.rows * int(size), peak() - before)
"""


@pytest.mark.kafka
@pytest.mark.parametrize("size", [100, 100_000])
def test_memory_is_bounded_whatever_the_size(stage: Stage, size: int) -> None:
    if stage.kind == "plain" and size == 100:
        pytest.skip("millions of calls take too long; the queue is the same")
    # The broker keeps little of it.
    topic = stage.topic(retention_bytes="10000000", segment_bytes="20000000")
    batches = 50
    arguments = [stage.kafka.bootstrap_servers, topic, stage.kind, str(size), str(batches)]
    done = subprocess.run(
        [sys.executable, "-c", _PUSH, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written, growth = map(int, done.stdout.split())
    assert written >= 500_000_000
    assert growth < 200_000_000


# How librdkafka is reached.


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise kafka_library.LibraryError("no such symbol")

    monkeypatch.setattr(kafka_library, "library", fail)


SETTINGS = producer_settings({"bootstrap.servers": "127.0.0.1:1"}, EXACTLY_ONCE, "id")


def test_the_fast_way_is_the_usual_one() -> None:
    client = connect(SETTINGS)
    client.close()
    assert isinstance(client, NativeClient)


def test_the_environment_forces_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLIENT_VARIABLE, "plain")
    client = connect(SETTINGS)
    client.close()
    assert isinstance(client, PlainClient)


@pytest.mark.usefixtures("unloadable")
def test_the_plain_way_where_the_library_cannot_be_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "assent.kafka"):
        client = connect(SETTINGS)
    client.close()
    assert isinstance(client, PlainClient)
    assert "cannot be used (no such symbol)" in caplog.text
    with pytest.raises(ConfigurationError, match="no such symbol"):
        connect(SETTINGS, kind="native")


def test_a_library_of_another_version_is_not_used() -> None:
    with pytest.raises(kafka_library.LibraryError, match="built for 0x1"):
        kafka_library.Library(str(ck.cimpl.__file__), 1)
    with pytest.raises(kafka_library.LibraryError):
        kafka_library.Library("/nowhere/librdkafka.so", 1)
    with pytest.raises(kafka_library.LibraryError):
        kafka_library.Library(str(Path(np.__file__).parent / "__init__.py"), 1)


# What the library tells.


def test_the_most_telling_failure_is_kept() -> None:
    reports = Reports()
    purged = Failure("t", 0, b"k", 5, "_PURGE_QUEUE", "Local: Purged in queue")
    reports.on_failure(purged)
    reports.on_failure(Failure("t", 1, None, 9, "MSG_SIZE_TOO_LARGE", "too large"))
    reports.on_failure(Failure("t", 1, b"\xff", 99, "MSG_SIZE_TOO_LARGE", "too large"))
    reports.on_failure(purged)
    assert reports.problem == (
        "topic 't', partition 1, key 0xff, 99 bytes: too large (4 records were not delivered)"
    )


def test_the_cause_is_told_with_its_consequence() -> None:
    reports = Reports()
    reports.on_log(3, "TXNERR", "Current transaction failed: not authorised")
    reports.on_failure(Failure("t", 0, b"k", 5, "_PURGE_QUEUE", "Local: Purged in queue"))
    assert reports.problem is not None
    assert reports.problem.startswith("Current transaction failed: not authorised; topic 't'")


def test_an_epoch_that_changes_within_a_transaction_is_a_problem() -> None:
    reports = Reports()
    reports.on_log(7, "GETPID", "[thrd:main]: Acquired PID{Id:4000,Epoch:3}")
    assert reports.identity == ProducerIdentity(4000, 3)
    reports.on_statistics('{"eos": {"producer_id": 4000, "producer_epoch": 3}}')
    assert not reports.problem
    reports.on_statistics('{"eos": {"producer_id": 4000, "producer_epoch": 4}}')
    assert "changed" in str(reports.problem)


def test_statistics_alone_tell_the_identity_too() -> None:
    reports = Reports()
    reports.on_statistics('{"eos": {"producer_id": -1, "producer_epoch": -1}}')
    assert not reports.identity
    reports.on_statistics('{"eos": {"producer_id": 7, "producer_epoch": 0}}')
    assert reports.identity == ProducerIdentity(7, 0)


def test_keys_in_errors() -> None:
    assert shown_key(None) == "none"
    assert shown_key(b"abc") == "'abc'"
    assert shown_key(b"\xff\0") == "0xff00"
    assert shown_key(b"x" * 500).endswith("… (500 bytes)")
    assert len(shown_key(b"x" * 500)) < 100
