"""Transactions of dead processes, settled from here, on real brokers of both lines.

After each phase: what the broker says is pending, and what a read_committed reader sees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.producer.transaction import EndTxnRequest

from assent.protocol.errors import FencedError, InDoubtError, RetriableError, TornEpochError
from assent.protocol.name import nonce
from assent.protocol.verdict import Verdict
from assent.sinks.kafka_connection import Address, Connection
from assent.sinks.kafka_control import KafkaControl
from assent.sinks.kafka_security import KafkaSecurity
from assent.sinks.kafka_verdict import State
from assent.testing.kafka import KafkaCluster
from tests.kafka_kit import Open, await_visible, open_transaction, open_transactions
from tests.plugins.kafka import require_kafka

pytestmark = pytest.mark.kafka


class Stage:
    """A topic, a prefix of transactional ids, and both planes."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self.topic = f"topic-{nonce()}"
        self.prefix = f"assent-{nonce()}-"
        self.control = KafkaControl(kafka.settings())
        kafka.create_topic(self.topic)

    def open(self, *rows: str, name: str = "0", timeout_ms: int = 60_000) -> Open:
        """A flushed transaction whose process was killed; or an id that was initialised only."""
        settings = self.kafka.settings()
        return open_transaction(settings, self.prefix + name, self.topic, rows, timeout_ms)

    def check(self, opened: Open, expected: Verdict, *rows: str) -> None:
        """What became of it, whether it is listed, and what readers see."""
        assert self.control.verdict(*opened.handle) is expected
        pending = {
            (found.transactional_id, found.producer.producer_id, found.producer.epoch)
            for found in self.control.transactions(self.prefix)
        }
        assert (opened.handle in pending) is (expected is Verdict.PENDING)
        self.await_visible(*rows)

    def await_visible(self, *rows: str) -> None:
        """What readers see, as soon as the markers have followed the commit."""
        await_visible(self.kafka.settings(), self.topic, *rows)

    def send(self, opened: Open, *, commit: bool, version: int) -> int:
        """End the transaction by a request of that version; gives the error code."""
        address = Address("127.0.0.1", self.kafka.brokers[0].port)
        connection = Connection(address, KafkaSecurity("PLAINTEXT"), "tests", 10)
        name, producer_id, epoch = opened.handle
        request = EndTxnRequest(
            version=version,
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        code = connection.ask(request, 10).error_code
        connection.close()
        assert isinstance(code, int)
        return code

    @property
    def bumps(self) -> bool:
        return self.control.brokers.cluster().transaction_version >= 2


@pytest.fixture
def stage(kafka_line: KafkaCluster) -> Iterator[Stage]:
    made = Stage(kafka_line)
    yield made
    made.control.close()


def test_commit_of_a_killed_process(stage: Stage) -> None:
    opened = stage.open("a", "b")
    stage.check(opened, Verdict.PENDING)
    stage.control.commit(*opened.handle)
    stage.check(opened, Verdict.COMMITTED, "a", "b")
    found = stage.control.describe(opened.transactional_id)
    assert found is not None
    # The handle can never name a later transaction where the broker raises the epoch.
    assert found.producer.epoch == opened.producer_epoch + (1 if stage.bumps else 0)
    assert found.timeout == 60.0
    assert found.started_at is not None
    assert abs(found.started_at - time.time()) < 60


def test_commit_twice_and_again_later(stage: Stage) -> None:
    opened = stage.open("a")
    stage.control.commit(*opened.handle)
    stage.control.commit(*opened.handle)
    stage.check(opened, Verdict.COMMITTED, "a")
    stage.control.commit(*opened.handle)
    stage.check(opened, Verdict.COMMITTED, "a")


def test_abort_after_commit_is_refused(stage: Stage) -> None:
    opened = stage.open("a")
    stage.control.commit(*opened.handle)
    with pytest.raises(FencedError, match="is committed"):
        stage.control.abort(*opened.handle)
    stage.check(opened, Verdict.COMMITTED, "a")


def test_abort_twice_then_commit(stage: Stage) -> None:
    opened = stage.open("a")
    stage.control.abort(*opened.handle)
    stage.check(opened, Verdict.ABORTED)
    stage.control.abort(*opened.handle)
    with pytest.raises(TornEpochError, match=r"was aborted.*INVALID_TXN_STATE"):
        stage.control.commit(*opened.handle)
    stage.check(opened, Verdict.ABORTED)


def test_a_timed_out_transaction_is_aborted_and_known_to_be(stage: Stage) -> None:
    opened = stage.open("a", timeout_ms=1500)
    stage.check(opened, Verdict.PENDING)
    deadline = time.monotonic() + 20
    while stage.control.verdict(*opened.handle) is Verdict.PENDING:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stage.check(opened, Verdict.ABORTED)
    answer = "INVALID_TXN_STATE" if stage.bumps else "PRODUCER_FENCED"
    with pytest.raises(TornEpochError, match=answer):
        stage.control.commit(*opened.handle)
    stage.control.abort(*opened.handle)
    stage.check(opened, Verdict.ABORTED)
    found = stage.control.describe(opened.transactional_id)
    assert found is not None
    assert found.producer.epoch == opened.producer_epoch + 1


def test_an_old_epoch_is_unknown_and_leaves_the_newer_one_alone(stage: Stage) -> None:
    old = stage.open("old")
    new = stage.open("new")
    assert new.producer_epoch == old.producer_epoch + 2
    stage.check(new, Verdict.PENDING)
    # Whether the old one was committed before the id was initialised again, nobody can tell.
    assert stage.control.verdict(*old.handle) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError, match=rf"(?s){old.transactional_id}.*PRODUCER_FENCED"):
        stage.control.commit(*old.handle)
    stage.control.abort(*old.handle)
    stage.check(new, Verdict.PENDING)
    stage.control.commit(*new.handle)
    stage.check(new, Verdict.COMMITTED, "new")


def test_initialised_again_after_the_commit_is_unknown_too(stage: Stage) -> None:
    old = stage.open("old")
    stage.control.commit(*old.handle)
    stage.await_visible("old")
    stage.open()
    assert stage.control.verdict(*old.handle) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError):
        stage.control.commit(*old.handle)
    # Nor does the commit of a later transaction speak for the earlier one.
    later = stage.open("later")
    stage.control.commit(*later.handle)
    stage.check(later, Verdict.COMMITTED, "old", "later")
    assert stage.control.verdict(*old.handle) is Verdict.UNKNOWN


def test_a_later_commit_at_the_next_epoch_does_not_speak_for_the_handle(stage: Stage) -> None:
    old = stage.open("old")
    assert stage.send(old, commit=False, version=4) == 0
    later = stage.open("later")
    assert later.producer_epoch == old.producer_epoch + 1
    assert stage.send(later, commit=True, version=4) == 0
    stage.await_visible("later")
    # Where commits raise the epoch, only requests that Assent never sends there lead to this.
    expected = Verdict.COMMITTED if stage.bumps else Verdict.UNKNOWN
    assert stage.control.verdict(*old.handle) is expected


def test_an_id_without_a_transaction_is_unknown(stage: Stage) -> None:
    opened = stage.open()
    stage.check(opened, Verdict.UNKNOWN)
    with pytest.raises(InDoubtError, match="INVALID_TXN_STATE"):
        stage.control.commit(*opened.handle)
    stage.control.abort(*opened.handle)
    assert stage.control.describe(opened.transactional_id) is not None


def test_forgotten_ids_and_other_producers_are_unknown(stage: Stage) -> None:
    forgotten = Open(stage.prefix + "forgotten", 5, 0)
    stage.check(forgotten, Verdict.UNKNOWN)
    assert stage.control.describe(forgotten.transactional_id) is None
    with pytest.raises(InDoubtError, match="INVALID_PRODUCER_ID_MAPPING"):
        stage.control.commit(*forgotten.handle)
    stage.control.abort(*forgotten.handle)
    opened = stage.open("a")
    foreign = Open(opened.transactional_id, opened.producer_id + 1000, opened.producer_epoch)
    higher = Open(opened.transactional_id, opened.producer_id, opened.producer_epoch + 3)
    for other in (foreign, higher):
        assert stage.control.verdict(*other.handle) is Verdict.UNKNOWN
        with pytest.raises(InDoubtError):
            stage.control.commit(*other.handle)
        stage.control.abort(*other.handle)
    stage.check(opened, Verdict.PENDING)
    stage.control.abort(*opened.handle)


def test_a_commit_that_left_the_epoch_is_known_by_newer_requests(stage: Stage) -> None:
    # As before an upgrade of the cluster; the newest request then does not know it as its own.
    opened = stage.open("a")
    assert stage.send(opened, commit=True, version=4) == 0
    stage.check(opened, Verdict.COMMITTED, "a")
    stage.control.commit(*opened.handle)
    # A broker of the second version would now agree to abort it: so it must not be asked to.
    with pytest.raises(FencedError):
        stage.control.abort(*opened.handle)
    stage.check(opened, Verdict.COMMITTED, "a")


def test_the_trap_that_abort_avoids(kafka: KafkaCluster) -> None:
    stage = Stage(kafka)
    opened = stage.open("a")
    assert stage.send(opened, commit=True, version=4) == 0
    stage.await_visible("a")
    assert stage.send(opened, commit=False, version=5) == 0
    assert stage.control.verdict(*opened.handle) is Verdict.ABORTED
    stage.await_visible("a")  # it is not: this is why abort describes first
    stage.control.close()


def test_all_of_a_prefix_are_listed_and_nothing_else(stage: Stage) -> None:
    opened = stage.open("a", name="1.(x)")
    other = Stage(stage.kafka)
    strange = other.open("b")
    listed = stage.control.transactions(stage.prefix)
    assert [found.transactional_id for found in listed] == [opened.transactional_id]
    assert listed[0].state is State.ONGOING
    assert [found.transactional_id for found in stage.control.transactions(stage.prefix + "1.(")]
    assert stage.control.transactions(stage.prefix + "1x(") == []
    stage.control.abort(*opened.handle)
    assert stage.control.transactions(stage.prefix) == []
    assert len(stage.control.transactions(stage.prefix, list(State))) == 1
    other.control.abort(*strange.handle)
    other.control.close()


def test_many_at_once(stage: Stage) -> None:
    names = [f"{stage.prefix}{number}" for number in range(24)]
    opened = open_transactions(stage.kafka.settings(), names, stage.topic, ["a"])
    assert len(stage.control.transactions(stage.prefix)) == 24
    with ThreadPoolExecutor(8) as threads:
        # Each of them twice: several processes may commit the same handle.
        list(threads.map(lambda one: stage.control.commit(*one.handle), opened + opened))
    assert stage.control.transactions(stage.prefix) == []
    stage.await_visible(*["a"] * 24)


def test_a_broker_killed_between_pre_commit_and_commit(stage: Stage) -> None:
    first, second = stage.open("a"), stage.open("b", name="1")
    stage.control.verdict(*first.handle)  # so that there is a connection to be lost
    (broker,) = stage.kafka.brokers
    broker.kill()
    impatient = KafkaControl(stage.kafka.settings(), timeout=0.5)
    with pytest.raises(RetriableError, match=f"{first.transactional_id}.*cannot be reached"):
        impatient.commit(*first.handle)
    with pytest.raises(RetriableError):
        impatient.verdict(*first.handle)
    impatient.close()
    with ThreadPoolExecutor(1) as threads:
        committing = threads.submit(stage.control.commit, *first.handle)
        broker.restart()
        committing.result()
    stage.control.abort(*second.handle)
    stage.check(first, Verdict.COMMITTED, "a")
    stage.check(second, Verdict.ABORTED, "a")


def test_a_new_broker_in_a_cluster_that_has_not_agreed_on_raising_the_epoch() -> None:
    with require_kafka(features={"transaction.version": 1}) as kafka:
        stage = Stage(kafka)
        assert not stage.bumps
        opened = stage.open("a")
        stage.control.commit(*opened.handle)
        stage.control.commit(*opened.handle)
        stage.check(opened, Verdict.COMMITTED, "a")
        found = stage.control.describe(opened.transactional_id)
        assert found is not None
        # What the broker would have done had it been asked by the newest request.
        assert found.producer.epoch == opened.producer_epoch
        stage.control.close()
