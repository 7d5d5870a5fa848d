from __future__ import annotations

import pytest

from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_producer import connect
from assent.sinks.kafka_settings import JAVA_ONLY, producer_settings

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


def settings(guarantee: Guarantee = Guarantee.EXACTLY_ONCE, **more: str) -> dict[str, str]:
    given = {**SERVERS, **{name.replace("_", "."): value for name, value in more.items()}}
    return producer_settings(given, guarantee, "id-1")


def test_what_both_clients_know_passes() -> None:
    found = settings(linger_ms="50", compression_type="zstd", acks="all", client_id="me")
    assert found["linger.ms"] == "50"
    assert found["compression.type"] == "zstd"
    assert found["transactional.id"] == "id-1"
    assert found["enable.idempotence"] == "true"
    for kind in ("native", "plain"):
        connect(found, kind=kind).close()


@pytest.mark.parametrize("kind", ["native", "plain"])
@pytest.mark.parametrize("name", sorted(JAVA_ONLY))
def test_what_only_the_java_client_knows(name: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"kafka.{name} is known to the Java client"):
        producer_settings({**SERVERS, name: "one"}, Guarantee.NONE)
    # And it is so: librdkafka does not take it.
    with pytest.raises(ConfigurationError, match=r"refuses|option kafka"):
        connect({**SERVERS, name: "one"}, kind=kind)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max.block.ms", "kafka.socket.timeout.ms"),
        ("buffer.memory", "kafka.queue.buffering.max.kbytes"),
        ("key.serializer", "keyColumns"),
        ("ssl.truststore.location", "kafka.ssl.ca.location"),
        ("max.request.size", "kafka.message.max.bytes"),
        ("sasl.jaas.config", "kafka.sasl.username"),
    ],
)
def test_the_error_names_what_to_set_instead(name: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=instead.replace(".", "[.]")):
        producer_settings({**SERVERS, name.upper(): "hidden-value"}, Guarantee.NONE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", "false"),
        ("acks", "1"),
        ("request.required.acks", "0"),
        ("transactional.id", "mine"),
        ("delivery.report.only.error", "false"),
        ("partitioner", "random"),
    ],
)
def test_what_would_break_the_guarantee(name: str, value: str) -> None:
    for guarantee in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
        with pytest.raises(ConfigurationError, match=f"kafka.{name} "):
            producer_settings({**SERVERS, name: value}, guarantee, "id-1")


def test_no_guarantee_allows_what_breaks_it() -> None:
    found = producer_settings({**SERVERS, "acks": "0"}, Guarantee.NONE)
    assert found["acks"] == "0"
    assert "enable.idempotence" not in found
    assert "transactional.id" not in found


def test_servers_are_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        producer_settings({}, Guarantee.NONE)


@pytest.mark.parametrize("kind", ["native", "plain"])
def test_an_unknown_name_or_value(kind: str) -> None:
    for name, value in (("lingr.ms", "5"), ("socket.timeout.ms", "x"), ("security.protocol", "y")):
        with pytest.raises(ConfigurationError, match=name.replace(".", "[.]")):
            connect({**SERVERS, name: value}, kind=kind)


@pytest.mark.parametrize("kind", ["native", "plain"])
def test_no_secret_in_an_error(kind: str) -> None:
    secret = "hunter2-hunter2"
    with pytest.raises(ConfigurationError) as caught:
        connect({**SERVERS, "security.protocol": "ssl", "ssl.ca.pem": secret}, kind=kind)
    assert secret not in str(caught.value)


def test_batches_stay_below_the_limit_of_the_topic() -> None:
    usual = settings()
    assert usual["message.max.bytes"] == str(1_048_576 - 61)
    assert usual["batch.size"] == "1000000"
    small = producer_settings(SERVERS, Guarantee.EXACTLY_ONCE, "id-1", topic_limit=20_000)
    assert small["message.max.bytes"] == small["batch.size"] == str(20_000 - 61)


def test_memory_is_bounded_and_one_row_always_fits() -> None:
    assert int(settings()["queue.buffering.max.kbytes"]) == 65_536
    large = settings(message_max_bytes="100000000")
    assert int(large["queue.buffering.max.kbytes"]) * 1024 > 100_000_000
    with pytest.raises(ConfigurationError, match="no room for one row"):
        settings(message_max_bytes="100000000", queue_buffering_max_kbytes="1000")
    with pytest.raises(ConfigurationError, match="expected a whole number"):
        settings(message_max_bytes="large")


def test_other_debug_contexts_are_kept() -> None:
    assert settings(debug="broker,topic")["debug"] == "broker,topic,eos"
