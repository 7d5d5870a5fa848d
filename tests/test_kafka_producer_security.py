"""TLS, SASL and permissions on the data plane; secrets are told to nobody."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from assent.protocol.errors import RetriableError
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import nonce
from assent.sinks.kafka_client import TokenFunction
from assent.sinks.kafka_producer import TaskProducer, connect
from assent.sinks.kafka_records import Records
from assent.sinks.kafka_settings import producer_settings
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_listener import ClientListener
from tests.plugins.kafka import require_kafka

_PASSWORD = f"secret-{nonce()}"
pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("kind", ["native", "plain"])]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    listener = ClientListener(
        mechanisms=("SCRAM-SHA-512", "OAUTHBEARER"), users={"alice": _PASSWORD}
    )
    with require_kafka(listener=listener) as cluster:
        cluster.create_topic("guarded")
        yield cluster


@pytest.fixture(scope="module")
def forbidding() -> Iterator[KafkaCluster]:
    """Users may do nothing here."""
    listener = ClientListener(tls=False, mechanisms=("PLAIN",), authorize=True)
    with require_kafka(listener=listener) as cluster:
        cluster.create_topic("guarded")
        yield cluster


def write(settings: dict[str, str], kind: str, token: TokenFunction | None = None) -> None:
    guarantee = Guarantee.EXACTLY_ONCE
    made = producer_settings(settings, guarantee, f"id-{nonce()}")
    client = connect(made, token, kind)
    with TaskProducer(client, guarantee, transaction_timeout=5, message_bytes=1000) as producer:
        producer.begin()
        producer.write(Records("guarded", pa.array([b"a"])))
        assert producer.finish() is not None


def test_scram_over_tls(guarded: KafkaCluster, kind: str) -> None:
    write(guarded.settings(), kind)


def test_a_wrong_password_is_told_without_it(
    guarded: KafkaCluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, started = f"wrong-{nonce()}", time.monotonic()
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(RetriableError, match=r"(?i)authentication") as caught,
    ):
        write({**guarded.settings(), "sasl.password": wrong, "debug": "all"}, kind)
    assert wrong not in str(caught.value)
    assert wrong not in caplog.text
    assert time.monotonic() - started < 4


def test_a_token_function_of_the_user(guarded: KafkaCluster, kind: str) -> None:
    asked: list[str] = []

    def token(configuration: str) -> tuple[object, ...]:
        asked.append(configuration)
        claims = {"sub": "alice", "iat": time.time() - 10, "exp": time.time() + 300}
        parts = ({"alg": "none"}, claims)
        text = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
        return b".".join(part.rstrip(b"=") for part in text).decode() + ".", claims["exp"]

    settings = {**guarded.settings(), "sasl.mechanism": "OAUTHBEARER"}
    write({**settings, "sasl.oauthbearer.config": "scope=rows"}, kind, token)
    assert set(asked) == {"scope=rows"}


def test_a_token_function_that_fails(guarded: KafkaCluster, kind: str) -> None:
    def token(configuration: str) -> tuple[object, ...]:
        raise RuntimeError("a-secret-in-the-message")

    settings = {**guarded.settings(), "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(Exception, match=r"(?i)token|no transaction could be opened") as caught:
        write(settings, kind, token)
    assert "a-secret" not in str(caught.value)
    if kind == "native":
        assert "the token function failed: RuntimeError" in str(caught.value)


def test_a_user_without_permission(forbidding: KafkaCluster, kind: str) -> None:
    started = time.monotonic()
    with pytest.raises(RetriableError, match=r"no transaction could be opened.*authorization"):
        write(forbidding.settings(), kind)
    assert time.monotonic() - started < 5
