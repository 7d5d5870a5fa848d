"""Three brokers: the coordinator of a transaction goes away between pre-commit and commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from assent.protocol.name import nonce
from assent.protocol.verdict import Verdict
from assent.sinks.kafka_connection import Connection
from assent.sinks.kafka_control import KafkaControl
from assent.testing.kafka import Broker, KafkaCluster
from tests.kafka_kit import await_visible, open_transaction, visible
from tests.plugins.kafka import require_kafka

pytestmark = pytest.mark.kafka

_TOPIC = "failover"


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with require_kafka(brokers=3) as cluster:
        cluster.create_topic(_TOPIC)
        yield cluster


def _coordinator(three: KafkaCluster, control: KafkaControl, transactional_id: str) -> Broker:
    def make(connection: Connection) -> object:
        return FindCoordinatorRequest(
            version=4,
            key_type=CoordinatorType.TRANSACTION.value,
            coordinator_keys=[transactional_id],
        )

    (found,) = control.brokers.ask_any(make, float("inf")).coordinators
    return three.broker(found.node_id)


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_the_coordinator_goes_away(three: KafkaCluster, how: str) -> None:
    prefix = f"assent-{nonce()}-"
    settings = three.settings()
    before = visible(settings, _TOPIC)
    opened = open_transaction(settings, prefix + "0", _TOPIC, ["a"])
    other = open_transaction(settings, prefix + "1", _TOPIC, ["b"])
    # Short, so that a coordinator which keeps its connections and is silent is given up soon.
    quick = {"socket.timeout.ms": "2000", "socket.connection.setup.timeout.ms": "2000"}
    with KafkaControl({**settings, **quick}, timeout=60) as control:
        assert control.verdict(*opened.handle) is Verdict.PENDING
        broker = _coordinator(three, control, opened.transactional_id)
        if how == "pause":
            broker.pause()
        else:
            broker.kill()
        try:
            control.commit(*opened.handle)
            assert control.verdict(*opened.handle) is Verdict.COMMITTED
            assert _coordinator(three, control, opened.transactional_id) is not broker
            # Listing goes by the brokers that are left.
            (pending,) = control.transactions(prefix)
            assert pending.transactional_id == other.transactional_id
            control.abort(*other.handle)
            assert control.transactions(prefix) == []
        finally:
            if how == "pause":
                broker.resume()
            else:
                broker.restart()
        broker.wait_until_ready(3)
        assert control.verdict(*opened.handle) is Verdict.COMMITTED
        assert control.verdict(*other.handle) is Verdict.ABORTED
        await_visible(settings, _TOPIC, *before, "a")
