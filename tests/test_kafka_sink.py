"""The Kafka sink on real brokers of both lines.

After each phase: what the broker says is pending, and what a reader sees that shares no client
with the sink.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pytest

from assent.ledger.ledger import Ledger
from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import prefix
from assent.protocol.record import RecordKey
from assent.protocol.step import Step, When
from assent.protocol.sweeper import Sweeper
from assent.protocol.verdict import Verdict
from assent.sinks.kafka import KafkaSink
from assent.sinks.kafka_control import KafkaControl
from assent.sinks.kafka_id import PLACES, TransactionalId
from assent.sinks.kafka_native import NativeClient
from assent.sinks.kafka_verdict import State
from assent.testing.kafka import KafkaCluster
from assent.testing.memory import MemoryStore
from tests.kafka_kit import committed
from tests.kafka_query import KafkaQuery, KafkaStage, batch

pytestmark = pytest.mark.kafka

TIMEOUT = 20.0


@pytest.fixture
def stage(kafka_line: KafkaCluster) -> KafkaStage:
    return KafkaStage(kafka_line)


def handles(sink: KafkaSink, identity: str) -> list[Handle]:
    return [found.handle for found in sink.pending(identity)]


def prepare(stage: KafkaStage, *rows: str, sink: KafkaSink | None = None, **name: int) -> Handle:
    sink = sink or stage.sink()
    transaction = sink.begin(stage.name(**name), 0)
    sink.write(transaction, batch(*rows))
    return sink.pre_commit(transaction)


def await_verdict(sink: KafkaSink, handle: Handle, expected: Verdict) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (found := sink.verdict(handle)) is not expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


# One transaction


def test_begin_write_pre_commit_commit(stage: KafkaStage) -> None:
    sink = stage.sink()
    name = stage.name(place=5, partition=3, attempt=2, term=4)
    transaction = sink.begin(name, 9)
    assert handles(sink, stage.identity) == []
    sink.write(transaction, batch("a", "b"))
    sink.write(transaction, batch("c"))
    stage.await_rows()
    handle = sink.pre_commit(transaction)
    transactional_id, producer_id, epoch = handle.name.split("/")
    assert transactional_id.startswith(f"assent-{stage.identity}-4-1-3-2-")
    assert producer_id.isdigit()
    assert epoch == "0"
    assert sink.verdict(handle) is Verdict.PENDING
    [found] = sink.pending(stage.identity)
    assert (found.handle, found.term, found.place, found.modulus) == (handle, 4, 1, 2)
    assert found.started_at is not None
    assert abs(found.started_at - time.time()) < 60
    stage.await_rows()
    for _ in range(2):
        sink.commit(handle)
        assert sink.verdict(handle) is Verdict.COMMITTED
        assert handles(sink, stage.identity) == []
        stage.await_rows("a", "b", "c")
    with pytest.raises(FencedError):
        sink.abort(handle)
    stage.await_rows("a", "b", "c")


def test_a_handle_tells_what_was_written_to_so_that_it_can_be_confirmed(
    stage: KafkaStage,
) -> None:
    sink = stage.sink(topic=None)
    transaction = sink.begin(stage.name(), 0)
    other = f"{stage.topic}-other"
    stage.kafka.create_topic(other, 5)
    for topic, partitions in ((stage.topic, [1, 1]), (other, [0, 3, 4])):
        texts = pa.array([str(number) for number in partitions])
        numbers = pa.array(partitions, pa.int32())
        topics = pa.array([topic] * len(partitions))
        sink.write(
            transaction,
            pa.record_batch({"value": texts, "topic": topics, "partition": numbers}),
        )
    handle = sink.pre_commit(transaction)
    [found] = sink.pending(stage.identity)
    for each in (handle, found.handle, Handle.parse(str(handle))):
        assert each.details["partitions"] == f"{stage.topic}:1/{other}:0.3-4"
    sink.commit(handle)
    sink.confirm([handle], Verdict.COMMITTED)
    # At once: no marker is on its way any more.
    assert committed(stage.kafka.bootstrap_servers, stage.topic) == ["1", "1"]
    assert sorted(committed(stage.kafka.bootstrap_servers, other)) == ["0", "3", "4"]
    # A handle of a release that did not tell.
    sink.confirm([Handle("kafka", handle.name, {"target": sink.target})], Verdict.COMMITTED)


def test_the_target_is_the_cluster_however_it_is_reached(stage: KafkaStage) -> None:
    sink = stage.sink()
    servers = sink.settings["bootstrap.servers"]
    other = KafkaSink({"bootstrap.servers": f"127.0.0.1:1, {servers}"}, topic=stage.topic)
    assert other.target == sink.target
    assert sink.target.endswith(f" topic {stage.topic}")
    assert servers not in sink.target
    assert stage.sink(topic=None).target.endswith(" topics per row")
    handle = prepare(stage, "a", sink=sink)
    other.commit(handle)
    stage.await_rows("a")


def test_abort(stage: KafkaStage) -> None:
    sink = stage.sink()
    handle = prepare(stage, "a", sink=sink)
    assert handles(sink, stage.identity) == [handle]
    for _ in range(2):
        sink.abort(handle)
        assert sink.verdict(handle) is Verdict.ABORTED
        assert handles(sink, stage.identity) == []
    with pytest.raises(TornEpochError):
        sink.commit(handle)
    stage.await_rows()


def test_discard_leaves_nothing_open(stage: KafkaStage) -> None:
    sink = stage.sink()
    for rows in ([], ["a"], [str(number) for number in range(5000)]):
        transaction = sink.begin(stage.name(), 0)
        if rows:
            sink.write(transaction, batch(*rows))
            deadline = time.monotonic() + TIMEOUT
            while not handles(sink, stage.identity):  # until the broker knows of it
                assert time.monotonic() < deadline
        sink.discard(transaction)
        assert handles(sink, stage.identity) == []
    stage.await_rows()


def test_recovery_from_another_process(stage: KafkaStage) -> None:
    """The process that wrote is killed; the text of its handle is all that is left."""
    script = textwrap.dedent(
        f"""
        import os, signal
        from tests.kafka_query import batch
        from assent import KafkaSink, TransactionName
        sink = KafkaSink({stage.kafka.settings()!r}, topic={stage.topic!r}, transaction_timeout=60)
        transaction = sink.begin(TransactionName({stage.identity!r}, 0, 0, 0, "0000"), 0)
        sink.write(transaction, batch("a", "b"))
        print(sink.pre_commit(transaction), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == -9, done.stderr
    handle = Handle.parse(done.stdout.strip())
    sink = stage.sink()
    assert handles(sink, stage.identity) == [handle]
    sink.recover_and_commit(handle, None)
    assert handles(sink, stage.identity) == []
    stage.await_rows("a", "b")


def test_a_handle_of_another_sink_is_refused(stage: KafkaStage) -> None:
    sink = stage.sink()
    handle = prepare(stage, "a", sink=sink)
    with pytest.raises(ConfigurationError, match="another sink"):
        stage.sink(topic="elsewhere").commit(handle)
    with pytest.raises(ConfigurationError, match="does not name"):
        sink.commit(Handle("kafka", "assent-0-1"))
    sink.abort(handle)


def test_the_pool_of_producers_is_bounded(stage: KafkaStage) -> None:
    sink = stage.sink(producer_pool_size=1)
    for end in (sink.discard, sink.pre_commit):
        transaction = sink.begin(stage.name(), 0)
        with pytest.raises(ConfigurationError, match=r"1 Kafka producers .*producerPoolSize"):
            sink.begin(stage.name(partition=1), 0)
        end(transaction)
    handle = prepare(stage, "a", sink=sink)
    sink.abort(handle)


# Orphans


def test_orphans_are_found_by_identity_and_only_those(stage: KafkaStage) -> None:
    other = KafkaStage(stage.kafka)
    mine = [prepare(stage, "a", place=place, partition=place) for place in range(3)]
    theirs = prepare(other, "b")
    # Another sink of the same query.
    second = other.sink()
    transaction = second.begin(stage.name(), 0)
    second.write(transaction, batch("c"))
    seconds = second.pre_commit(transaction)
    sink = stage.sink()
    assert sorted(handles(sink, stage.identity), key=str) == sorted(mine, key=str)
    assert handles(other.sink(), other.identity) == [theirs]
    assert handles(second, stage.identity) == [seconds]
    for handle in mine:
        sink.abort(handle)
    assert second.verdict(seconds) is Verdict.PENDING
    second.abort(seconds)
    second.abort(theirs)


def test_the_sweeper_spares_the_place_that_is_being_written(stage: KafkaStage) -> None:
    sink = stage.sink()
    dead = prepare(stage, "dead", place=2)
    alive = prepare(stage, "alive", place=3)
    sweeper = Sweeper(Ledger(MemoryStore()), [sink])
    assert sweeper.sweep(stage.identity, RecordKey(3, 0)) == 1
    assert sink.verdict(dead) is Verdict.ABORTED
    assert handles(sink, stage.identity) == [alive]
    assert sweeper.sweep(stage.identity, RecordKey(0, 1)) == 1  # a newer term
    assert handles(sink, stage.identity) == []
    stage.await_rows()


def test_orphans_are_aborted_within_one_epoch_and_readers_move_on(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    query = KafkaQuery(kafka_line, tmp_path)
    coordinator = query.start()
    first = query.run(coordinator, 0, [["a"]])
    # An attempt that failed after its vote was on its way, and another one that counts.
    assignment = query.plan(coordinator, 1)
    query.write(assignment, 1, [["b"], ["c"]], attempt=0)
    votes = query.write(assignment, 1, [["b"], ["c"]], attempt=1)
    assert len(query.pending(first.identity)) == 4
    coordinator.commit(votes, 1)
    query.checkpoint.committed.add(1)
    assert query.pending(first.identity) == []
    query.stage.await_rows("a", "b", "c")


def test_killed_before_the_decision_the_next_run_aborts_and_replays(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    query = KafkaQuery(kafka_line, tmp_path)
    query.run(query.start(), 0, [["a"]])
    query.die(When.BEFORE, Step.DECIDE, 1, [["b"], ["c"]])
    assert committed(kafka_line.bootstrap_servers, query.stage.topic) == ["a"]
    assignment = query.run(query.start(), 1, [["b"], ["c"]])
    assert query.pending(assignment.identity) == []
    query.stage.await_rows("a", "b", "c")


def test_killed_after_the_decision_the_next_run_commits(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    query = KafkaQuery(kafka_line, tmp_path)
    query.die(When.AFTER, Step.DECIDE, 0, [["a"], ["b"]])
    coordinator = query.start()
    query.plan(coordinator, 0)
    query.stage.await_rows("a", "b")
    assignment = query.run(coordinator, 0, [["a"], ["b"]])
    assert query.pending(assignment.identity) == []
    query.stage.await_rows("a", "b")


def test_a_timeout_after_the_decision_is_rewritten(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    """R6: the broker gives up what was decided; every row is there once all the same."""
    query = KafkaQuery(kafka_line, tmp_path, transaction_timeout=5.0)
    query.run(query.start(), 0, [["a"]])
    query.die(When.AFTER, Step.DECIDE, 1, [["b"], ["c"]])
    ledger = query.start().ledger
    identity = ledger.open(query.start()._owner()).identity
    deadline = time.monotonic() + TIMEOUT
    while query.pending(identity):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    query.stage.await_rows("a")
    coordinator = query.start()
    assignment = query.plan(coordinator, 1)
    assert assignment.decided is not None
    assert assignment.decided.torn is not None
    assert assignment.decided.torn.whole
    coordinator.commit(query.write(assignment, 1, [["b"], ["c"]]), 1)
    query.checkpoint.committed.add(1)
    query.stage.await_rows("a", "b", "c")
    query.run(coordinator, 2, [["d"]])
    assert query.pending(identity) == []
    query.stage.await_rows("a", "b", "c", "d")


@pytest.mark.parametrize("replay", [[["a"], ["b"]], [["b"], ["a"]]], ids=["same", "turned"])
def test_only_the_part_that_timed_out_is_rewritten(
    kafka_line: KafkaCluster, tmp_path: Path, replay: list[list[str]]
) -> None:
    query = KafkaQuery(kafka_line, tmp_path, transaction_timeout=5.0)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    query.die(When.AFTER, Step.DECIDE, 0, [["a"], ["b"]])
    sink = query.stage.sink()
    [first, second] = sorted(handles(sink, assignment.identity), key=str)
    sink.commit(first)
    await_verdict(sink, second, Verdict.ABORTED)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    assert assignment.decided is not None
    assert assignment.decided.torn is not None
    assert list(assignment.decided.torn.parts) == [(1, 0)]
    coordinator.commit(query.write(assignment, 0, replay), 0)
    assert query.pending(assignment.identity) == []
    query.stage.await_rows("a", "b")


def test_an_epoch_that_is_torn_twice_under_one_term(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    """What is written again takes no id away from what is committed, whichever task writes it."""
    query = KafkaQuery(kafka_line, tmp_path)
    coordinator = query.start()
    for _ in range(2):
        assignment = query.plan(coordinator, 0)
        votes = query.write(assignment, 0, [["a"], ["b"]])
        query.sink().abort(votes[0].share.prepared[0].handle)
        with pytest.raises(TornEpochError):
            coordinator.commit(votes, 0)
    assignment = query.plan(coordinator, 0)
    assert assignment.key.place % PLACES == 0  # the ids of the first time would be used again
    coordinator.commit(query.write(assignment, 0, [["b"], ["a"]]), 0)
    assert query.pending(assignment.identity) == []
    query.stage.await_rows("a", "b")


def test_a_number_of_tasks_that_shrinks_and_grows_between_runs(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    """8 to 2 to 16: no orphan is left, no committed row is lost."""
    query = KafkaQuery(kafka_line, tmp_path)
    expected: list[str] = []
    epoch = 0
    for tasks in (8, 2, 16):
        rows = [[f"{epoch}/{task}"] for task in range(tasks)]
        query.run(query.start(), epoch, rows)
        expected += [row for part in rows for row in part]
        # The next epoch's driver dies with all its transactions open, and undecided.
        query.die(When.BEFORE, Step.DECIDE, epoch + 1, rows)
        epoch += 1
    identity = query.run(query.start(), epoch, [["last"]]).identity
    assert query.pending(identity) == []
    query.stage.await_rows(*expected, "last")


def test_an_empty_task_opens_no_transaction_and_ids_are_bounded(
    kafka_line: KafkaCluster, tmp_path: Path
) -> None:
    query = KafkaQuery(kafka_line, tmp_path)
    coordinator = query.start()
    first = query.plan(coordinator, 0)

    def ids(epochs: range) -> set[str]:
        """The slots of all ids that the broker knows once these epochs are done."""
        for epoch in epochs:
            query.run(coordinator, epoch, [[f"{epoch}"], [], [f"{epoch}+"]])
        with KafkaControl(kafka_line.settings()) as control:
            found = control.transactions(prefix(first.identity), list(State)[:-1])
        known = [TransactionalId.parse(each.transactional_id) for each in found]
        return {f"{each.place} {each.slot}" for each in known if each is not None}

    slots = ids(range(5))
    # Those of the first tasks, and then the process's own: two tasks, two places.
    assert {"0 0-0", "0 2-0", "1 0-0"} <= slots
    assert len(slots - {"0 0-0", "0 2-0", "1 0-0", "1 2-0"}) == 4
    assert ids(range(5, 15)) == slots
    query.stage.await_rows(*(f"{epoch}{end}" for epoch in range(15) for end in ("", "+")))


def test_a_producer_made_ahead_is_for_one_place_and_one_process(stage: KafkaStage) -> None:
    """For another place than the next one it is of no use, and its id is not touched."""
    sink = stage.sink()
    slots = []
    for place in (0, 1, 2, 3, 5, 6, 7):
        transaction = sink.begin(stage.name(place=place), place)
        sink.write(transaction, batch(str(place)))
        assert transaction.transactional_id is not None
        assert transaction.transactional_id.place == place % 2
        slots.append(transaction.transactional_id.slot[0])
        sink.commit(sink.pre_commit(transaction))
    assert slots == ["0", "0", "w", "w", "0", "0", "w"]
    stage.await_rows("0", "1", "2", "3", "5", "6", "7")


def test_a_producer_made_ahead_that_cannot_be_used_is_not(
    stage: KafkaStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = stage.sink()
    for place in (0, 1):
        sink.commit(prepare(stage, str(place), sink=sink, place=place))
    monkeypatch.setattr(NativeClient, "is_usable", lambda client: False)
    transaction = sink.begin(stage.name(place=2), 2)
    assert transaction.transactional_id is not None
    assert transaction.transactional_id.slot == "0-0"
    sink.write(transaction, batch("2"))
    sink.commit(sink.pre_commit(transaction))
    stage.await_rows("0", "1", "2")


# The other guarantees


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_transactions(stage: KafkaStage, guarantee: Guarantee) -> None:
    sink = stage.sink()
    sink.guarantee = guarantee
    sink.check(batch("a").schema)
    handle = prepare(stage, "a", "b", sink=sink)
    stage.await_rows("a", "b")
    sink.commit(handle)
    sink.abort(handle)
    assert handles(sink, stage.identity) == []
    stage.await_rows("a", "b")


# Rows that cannot be sent


def test_a_row_that_is_too_large_names_topic_and_size(stage: KafkaStage) -> None:
    topic = f"{stage.topic}-small"
    stage.kafka.create_topic(topic, max_message_bytes="2000")
    sink = stage.sink(topic=topic)
    transaction = sink.begin(stage.name(), 0)
    with pytest.raises(AssentError, match=rf"{topic}.*3000 bytes.*deadLetterTopic"):
        sink.write(transaction, batch("x" * 3000))
    sink.discard(transaction)
    assert handles(sink, stage.identity) == []


def test_dead_letters_are_in_the_same_transaction_and_counted(stage: KafkaStage) -> None:
    topic = f"{stage.topic}-small"
    stage.kafka.create_topic(topic, max_message_bytes="2000")
    sink = stage.sink(topic=topic, dead_letter_topic=stage.topic)
    sink.check(batch("a").schema)
    handle = prepare(stage, "a", "x" * 3000, sink=sink)
    assert handle.details["deadLetters"] == "1"
    stage.await_rows()
    sink.commit(handle)
    await_verdict(sink, handle, Verdict.COMMITTED)
    deadline = time.monotonic() + TIMEOUT
    while not (found := committed(stage.kafka.bootstrap_servers, stage.topic)):
        assert time.monotonic() < deadline
    assert len(found) == 1
    assert set(found[0]) == {"x"}
    assert committed(stage.kafka.bootstrap_servers, topic) == ["a"]


# Before the query starts


def test_a_dead_letter_topic_has_to_take_what_the_topic_takes(stage: KafkaStage) -> None:
    dead = f"{stage.topic}-dead"
    stage.kafka.create_topic(dead, max_message_bytes="2000")
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes is 2000, below the 1048588"):
        stage.sink(dead_letter_topic=dead).check(batch("a").schema)


def test_check_passes_and_leaves_nothing(stage: KafkaStage) -> None:
    stage.sink().check(batch("a").schema)
    stage.sink().check(batch("a").schema, overwrite=True)
    assert handles(stage.sink(), stage.identity) == []


def test_check_names_a_topic_that_is_missing(stage: KafkaStage) -> None:
    with pytest.raises(ConfigurationError, match=r"option topic is 'nowhere'; there is no such"):
        stage.sink(topic="nowhere").check(batch("a").schema)
    with pytest.raises(ConfigurationError, match=r"option deadLetterTopic is 'nowhere'"):
        stage.sink(dead_letter_topic="nowhere").check(batch("a").schema)


def test_check_compares_the_timeout_with_the_brokers(stage: KafkaStage) -> None:
    with pytest.raises(ConfigurationError, match=r"is 901 s, but .* 900 s .*=900000"):
        stage.sink(transaction_timeout=901.0).check(batch("a").schema)
    stage.sink(transaction_timeout=900.0).check(batch("a").schema)


def test_check_refuses_what_the_client_does_not_know(stage: KafkaStage) -> None:
    sink = KafkaSink({**stage.kafka.settings(), "no.such.setting": "1"}, topic=stage.topic)
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        sink.check(batch("a").schema)


def test_check_refuses_columns(stage: KafkaStage) -> None:
    with pytest.raises(ConfigurationError, match="no column 'value'"):
        stage.sink().check(batch("a").rename_columns(["other"]).schema)


def test_check_of_a_cluster_that_is_not_there() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "socket.connection.setup.timeout.ms": "1000"}
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:1.*cannot be reached"):
        KafkaSink(settings, topic="any").check(batch("a").schema)
