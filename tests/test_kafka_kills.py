"""Real Spark and a real broker: the driver is killed (SIGKILL) and started again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from assent.ledger.settlement import unfinished
from assent.protocol.name import nonce
from assent.sinks.kafka_control import KafkaControl
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.kafka import KafkaCluster
from assent.testing.process import DriverProcess
from assent.testing.reader import Count, expected_rows
from tests.kafka_kit import committed
from tests.kill_chain import SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.faults]

BOUNDARIES: Boundaries = ((1500, 1500), (3000, 3005), (3000, 3008))


def visible(kafka: KafkaCluster, topic: str) -> Counter[tuple[int, int]]:
    """What kafka-python reads, committed alone; the sink's own producer is librdkafka."""
    rows = map(json.loads, committed(kafka.bootstrap_servers, topic))
    return Counter((row["partition"], row["offset"]) for row in rows)


@pytest.mark.parametrize("front_end", ["datasource", "foreachbatch"])
@pytest.mark.parametrize("point", ["before-decide@1", "after-decide@1", "during-commit@1"])
def test_killed_around_the_decision(
    kafka: KafkaCluster, front_end: str, point: str, tmp_path: Path
) -> None:
    topic = f"views-{nonce()}"
    kafka.create_topic(topic, partitions=2)
    checkpoint = tmp_path / "checkpoint"
    command = [
        *("-m", "assent.testing.job", "--front-end", front_end, "--sink", "kafka"),
        *("--bootstrap", kafka.bootstrap_servers, "--topic", topic),
        *("--checkpoint", str(checkpoint), "--boundaries", format_boundaries(BOUNDARIES)),
    ]
    epochs = expected_rows(BOUNDARIES)
    with DriverProcess(command, tmp_path, crash=CrashPoint.parse(point)) as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    # Whatever is seen of epoch 1 by now, nothing is seen twice, and nothing of a later one.
    assert not visible(kafka, topic) - (epochs[0] + epochs[1])
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
    found = Count.of(visible(kafka, topic), epochs[0] + epochs[1] + epochs[2])
    assert found.exact, found
    ledger, state = open_checkpoint(str(checkpoint))
    assert unfinished(ledger, state) == []
    with KafkaControl(kafka.settings()) as control:
        assert control.transactions("assent-") == []
