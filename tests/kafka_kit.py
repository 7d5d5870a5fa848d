"""Transactions in processes of their own, and what readers see of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer

_READ_SECONDS = 30.0

_WRITER = """
import json, sys, time
from confluent_kafka import Producer

wish = json.loads(sys.argv[1])
producers, told, failed = [], [], []
for name in wish["transactional_ids"]:
    seen = {}
    def on_statistics(text, seen=seen):
        eos = json.loads(text).get("eos", {})
        seen.update(producer_id=eos["producer_id"], producer_epoch=eos["producer_epoch"])
    producer = Producer({
        **wish["settings"],
        "transactional.id": name,
        "transaction.timeout.ms": wish["timeout"],
        "statistics.interval.ms": 50,
        "stats_cb": on_statistics,
    })
    producer.init_transactions(60)
    while seen.get("producer_id", -1) < 0:
        producer.poll(0.05)
    if wish["rows"]:
        producer.begin_transaction()
        for row in wish["rows"]:
            producer.produce(
                wish["topic"], row, on_delivery=lambda e, m: e and failed.append(str(e)))
    producers.append(producer)
    told.append({"transactional_id": name, **seen})
for producer in producers:
    if producer.flush(60):
        failed.append("not flushed")
print(json.dumps({"told": told, "failed": failed}), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Open:
    """A transaction that was flushed and left open; its process is dead."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def handle(self) -> tuple[str, int, int]:
        return self.transactional_id, self.producer_id, self.producer_epoch


def open_transactions(
    settings: Mapping[str, str],
    transactional_ids: Sequence[str],
    topic: str,
    rows: Sequence[str],
    timeout_ms: int = 60_000,
) -> list[Open]:
    """Write rows in transactions of another process, which is killed (SIGKILL) once flushed.

    Without rows the ids are initialised, and no more.
    """
    wish = {
        "settings": dict(settings),
        "transactional_ids": list(transactional_ids),
        "topic": topic,
        "rows": list(rows),
        "timeout": timeout_ms,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, json.dumps(wish)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    _, errors = process.communicate()
    assert line, errors
    answer = json.loads(line)
    assert not answer["failed"], answer["failed"]
    return [Open(**told) for told in answer["told"]]


def open_transaction(
    settings: Mapping[str, str],
    transactional_id: str,
    topic: str,
    rows: Sequence[str],
    timeout_ms: int = 60_000,
) -> Open:
    """One transaction, as above."""
    (opened,) = open_transactions(settings, [transactional_id], topic, rows, timeout_ms)
    return opened


def visible(settings: Mapping[str, str], topic: str, partitions: int = 1) -> list[str]:
    """All that a read_committed reader gets, sorted, up to the first open transaction."""
    found = messages(settings, topic, partitions)
    return sorted((message.value() or b"").decode() for message in found)


def messages(settings: Mapping[str, str], topic: str, partitions: int = 1) -> list[Message]:
    """The same, as they are."""
    consumer = Consumer(
        {
            **settings,
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    rows: list[Message] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"read only {len(rows)} rows of {topic}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                rows.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
            else:
                raise AssertionError(str(error))
    finally:
        consumer.close()
    return rows


def committed(bootstrap_servers: str, topic: str) -> list[str]:
    """As `visible`, but read by kafka-python, which no row is written with."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=10,
    )
    rows: list[str] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        places = [
            kafka.TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)
        ]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        # For such a reader a topic ends before the first open transaction.
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline, f"read only {rows} of {topic}"
            for records in consumer.poll(timeout_ms=200).values():
                rows += [record.value.decode() for record in records]
    finally:
        consumer.close()
    return sorted(rows)


def await_committed(bootstrap_servers: str, topic: str, rows: Iterable[str]) -> None:
    """Wait until that reader sees exactly these: the markers of a commit follow it."""
    expected = sorted(rows)
    deadline = time.monotonic() + _READ_SECONDS
    while (found := committed(bootstrap_servers, topic)) != expected:
        assert time.monotonic() < deadline, f"readers see {found}, not {expected}"
        # Late is all that a commit may be.
        assert not Counter(found) - Counter(expected), f"readers see {found}, not {expected}"


def await_visible(settings: Mapping[str, str], topic: str, *rows: str) -> None:
    """Wait until a reader sees exactly these: the markers of a commit follow it."""
    deadline = time.monotonic() + _READ_SECONDS
    while (found := visible(settings, topic)) != sorted(rows):
        assert time.monotonic() < deadline, f"readers see {found}, not {sorted(rows)}"
        # Late is all that a commit may be.
        assert set(found) <= set(rows), f"readers see {found}, not {sorted(rows)}"


def produce(settings: Mapping[str, str], topic: str, rows: Sequence[str]) -> None:
    """Write rows without a transaction."""
    producer = Producer(dict(settings))
    for row in rows:
        producer.produce(topic, row)
    assert producer.flush(_READ_SECONDS) == 0
