"""Real brokers: started, killed, paused and restarted with their data."""

from __future__ import annotations

import pytest

from assent.protocol.errors import RetriableError
from assent.sinks.kafka_brokers import Brokers
from assent.testing.jars import JarsUnavailable
from assent.testing.kafka import KafkaCluster, _cluster_id
from assent.testing.server import ServerFailure
from tests.kafka_kit import produce, visible
from tests.plugins.kafka import require_kafka

pytestmark = pytest.mark.kafka


def test_a_killed_broker_comes_back_with_its_data(kafka_line: KafkaCluster) -> None:
    settings = kafka_line.settings()
    kafka_line.create_topic("kept", 1)
    produce(settings, "kept", ["a", "b"])
    (broker,) = kafka_line.brokers
    broker.kill()
    assert not broker.running
    broker.restart()
    assert visible(settings, "kept") == ["a", "b"]


def test_a_paused_broker_answers_nothing_until_it_is_resumed(kafka: KafkaCluster) -> None:
    (broker,) = kafka.brokers
    settings = {**kafka.settings(), "socket.connection.setup.timeout.ms": "500"}
    brokers = Brokers({**settings, "socket.timeout.ms": "500"})
    identity = brokers.cluster().cluster_id
    broker.pause()
    try:
        with pytest.raises(RetriableError, match="cannot be reached"):
            brokers.cluster(timeout=1)
    finally:
        broker.resume()
    assert brokers.cluster().cluster_id == identity
    brokers.close()


def test_properties_reach_the_broker_and_its_facts_can_be_asked_for(kafka: KafkaCluster) -> None:
    kafka.create_topic("three", 3)
    brokers = Brokers(kafka.settings())
    name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    cluster = brokers.cluster([name, "transaction.max.timeout.ms", "auto.create.topics.enable"])
    assert cluster.settings == {
        name: "200",
        "transaction.max.timeout.ms": "900000",
        "auto.create.topics.enable": "false",
    }
    assert cluster.transaction_version == 2
    assert [address.port for address in cluster.brokers.values()] == [kafka.brokers[0].port]
    topic = brokers.topic("three")
    assert topic is not None
    assert (topic.partitions, topic.may_write) == (3, True)
    assert brokers.topic("none") is None
    brokers.close()


def test_a_broker_that_does_not_start_says_why_and_leaves_nothing() -> None:
    cluster = require_kafka(properties={"log.retention.hours": "soon"})
    with pytest.raises(
        ServerFailure, match=r"(?s)formatting broker 1 failed.*log\.retention\.hours"
    ):
        cluster.start()
    with pytest.raises(ServerFailure, match="was not started"):
        _ = cluster.folder


def test_without_jars_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*arguments: object) -> object:
        raise JarsUnavailable("no network")

    monkeypatch.setattr("assent.testing.kafka.resolve", unavailable)
    missing: list[str] = []
    monkeypatch.setattr("tests.plugins.kafka._missing", missing)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no network"):
        require_kafka()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no network"):
        require_kafka()
    assert len(missing) == 2


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    made = [_cluster_id() for _ in range(2000)]
    assert not [text for text in made if text.startswith("-")]
    assert {len(text) for text in made} == {22}
