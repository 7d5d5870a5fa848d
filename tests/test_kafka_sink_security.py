"""The Kafka sink over TLS and SCRAM, by a user who may do what its page lists, and no more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)

from assent.protocol.errors import ConfigurationError
from assent.protocol.name import nonce
from assent.protocol.step import Step, When
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_group import ConsumerGroup, Position
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_listener import ClientListener
from tests.kafka_query import KafkaQuery
from tests.plugins.kafka import require_kafka

pytestmark = pytest.mark.kafka

PASSWORD = f"secret-{nonce()}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """TLS and SCRAM, and nobody may do anything unless it is granted."""
    listener = ClientListener(
        mechanisms=("SCRAM-SHA-512",), users={"alice": PASSWORD}, authorize=True
    )
    with require_kafka(listener=listener) as cluster:
        yield cluster


def grant(cluster: KafkaCluster, kind: ResourceType, name: str, *operations: ACLOperation) -> None:
    """Allow it to alice; a name that ends with `-` is a prefix."""
    form = ACLResourcePatternType.PREFIXED if name.endswith("-") else ACLResourcePatternType.LITERAL
    pattern = ResourcePattern(kind, name, form)
    # Over the plain listener, whose user may do anything.
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.create_acls(
            [
                ACL("User:alice", "*", operation, ACLPermissionType.ALLOW, pattern)
                for operation in operations
            ]
        )
    finally:
        admin.close()


def await_outcome(call: Callable[[], object], refusal: str | None) -> None:
    """Wait until the call is refused so, or not at all: brokers learn of grants a moment later."""
    deadline = time.monotonic() + 30
    while True:
        try:
            call()
            found = None
        except ConfigurationError as error:
            found = str(error)
        if (found is None) == (refusal is None) and (refusal or "") in (found or ""):
            return
        assert time.monotonic() < deadline, f"{found} instead of {refusal}"
        time.sleep(0.05)


def test_a_whole_epoch_and_a_recovery_with_the_documented_permissions(
    guarded: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = KafkaQuery(guarded, tmp_path)

    def check() -> None:
        query.sink().check(query.stage.schema)

    await_outcome(check, "does not let this user see")
    configs = ACLOperation.DESCRIBE_CONFIGS
    grant(guarded, ResourceType.TOPIC, query.stage.topic, ACLOperation.DESCRIBE, configs)
    await_outcome(check, "does not let this user write")
    grant(guarded, ResourceType.TOPIC, query.stage.topic, ACLOperation.WRITE)
    await_outcome(check, "transactional ids")
    ids = ResourceType.TRANSACTIONAL_ID
    grant(guarded, ids, "assent-", ACLOperation.DESCRIBE, ACLOperation.WRITE)
    await_outcome(check, None)
    with caplog.at_level(logging.DEBUG):
        check()
        query.run(query.start(), 0, [["a"], ["b"]])
        query.stage.await_rows("a", "b")
        query.die(When.AFTER, Step.DECIDE, 1, [["c"], ["d"]])
        coordinator = query.start()
        assignment = query.plan(coordinator, 1)
        query.stage.await_rows("a", "b", "c", "d")
        assert query.pending(assignment.identity) == []
    assert PASSWORD not in caplog.text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_a_wrong_password_is_told_without_it(guarded: KafkaCluster, tmp_path: Path) -> None:
    query = KafkaQuery(guarded, tmp_path)
    sink = query.stage.sink()
    wrong = sink.settings["sasl.password"] = f"wrong-{nonce()}"
    with pytest.raises(ConfigurationError, match="refused the login") as caught:
        sink.check(query.stage.schema)
    assert wrong not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_offsets_need_permission_for_the_group_and_its_topics(
    guarded: KafkaCluster, tmp_path: Path
) -> None:
    query = KafkaQuery(guarded, tmp_path)
    brokers = Brokers(guarded.settings())
    try:
        group = ConsumerGroup(brokers, f"lag-{nonce()}")
        place = (query.stage.topic, 0)
        needed = "operation Read on the consumer group"
        await_outcome(group.positions, needed)
        grant(guarded, ResourceType.GROUP, group.group, ACLOperation.READ)
        await_outcome(group.positions, None)
        await_outcome(lambda: group.move({place: Position(3)}), needed)
        grant(guarded, ResourceType.TOPIC, query.stage.topic, ACLOperation.READ)
        await_outcome(lambda: group.move({place: Position(3)}), None)
        assert group.positions() == {place: Position(3)}
    finally:
        brokers.close()
