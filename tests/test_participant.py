"""The participant: what a task does, and what it leaves alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from assent.protocol.assignment import Assignment, Decided, Torn
from assent.protocol.errors import ConfigurationError
from assent.protocol.fingerprint import Fingerprint
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import TransactionName
from assent.protocol.participant import Participant
from assent.protocol.record import RecordKey
from assent.protocol.share import Share
from assent.protocol.step import Moment
from assent.protocol.verdict import Verdict
from assent.testing.memory import MemoryServer, MemorySink, MemoryTransaction
from tests.query import Clock, WatchedSink, batches

ASSIGNMENT = Assignment("0123abcd", RecordKey(3, 2), "run")


class Discards(WatchedSink):
    """Forgets rows at once, as a store on another machine would."""

    def write(self, transaction: MemoryTransaction, batch: pa.RecordBatch) -> None:
        self.interfere("write")


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def sink(server: MemoryServer) -> WatchedSink:
    return WatchedSink(server, "memory")


class Unreadable:
    """Input that must not be read."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        raise AssertionError("the input was read")


def decided(torn: Torn | None) -> Assignment:
    return replace(ASSIGNMENT, decided=Decided(7, RecordKey(2, 2), torn=torn))


def fingerprint_of(rows: list[int]) -> str:
    fingerprint = Fingerprint()
    for batch in batches(rows):
        fingerprint.update(batch)
    return str(fingerprint)


def test_a_skipped_vote_reads_no_input_and_opens_nothing(sink: WatchedSink) -> None:
    vote = Participant([sink], decided(None)).vote(7, 1, 0, Unreadable())
    assert vote.skipped
    assert vote.share.prepared == ()
    assert sink.operations == []


def test_a_task_that_holds_nothing_of_what_is_torn_opens_nothing_and_says_what_it_read(
    sink: WatchedSink,
) -> None:
    torn = Torn(False, {(1, 0): fingerprint_of([4]), (2, 0): fingerprint_of([1, 2, 3, 4])})
    vote = Participant([sink], decided(torn)).vote(7, 1, 0, batches([1, 2, 3]))
    assert vote.skipped
    assert vote.share == Share(1, 0, fingerprint_of([1, 2, 3]), ())
    assert sink.operations == []


@pytest.mark.parametrize(
    ("epoch", "torn"),
    [
        pytest.param(8, None, id="the next epoch"),
        pytest.param(7, Torn(True), id="torn as a whole"),
        pytest.param(7, Torn(False, {(1, 0): fingerprint_of([1, 2, 3])}), id="torn here"),
        pytest.param(7, Torn(False, {(0, 0): fingerprint_of([3, 1, 2])}), id="torn elsewhere"),
    ],
)
def test_a_task_whose_part_is_not_committed_writes(
    sink: WatchedSink, server: MemoryServer, epoch: int, torn: Torn | None
) -> None:
    vote = Participant([sink], decided(torn)).vote(epoch, 1, 0, batches([1, 2, 3]))
    assert not vote.skipped
    [transaction] = server.transactions.values()
    assert transaction.rows == [1, 2, 3]
    assert transaction.prepared
    assert transaction.state is Verdict.PENDING


def test_a_vote_says_what_was_written(sink: WatchedSink) -> None:
    clock = Clock(50.0)
    vote = Participant([sink], ASSIGNMENT, clock=clock).vote(7, 4, 2, batches([1, 2, 3]))
    [prepared] = vote.share.prepared
    assert (vote.epoch, vote.share.partition, vote.share.attempt) == (7, 4, 2)
    assert (prepared.sink, prepared.rows, prepared.bytes, prepared.started_at) == (0, 3, 24, 50.0)
    name = TransactionName.parse(prepared.handle.name)
    assert (name.identity, name.term, name.place, name.partition) == ("0123abcd", 2, 3, 4)
    assert vote.share.fingerprint


def test_empty_tasks_open_no_transaction(sink: WatchedSink) -> None:
    empty = pa.record_batch({"row": pa.array([], pa.int64())})
    vote = Participant([sink], ASSIGNMENT).vote(7, 0, 0, iter([empty, empty]))
    assert not vote.skipped
    assert vote.share.prepared == ()
    assert sink.operations == []


def test_batches_are_not_kept(server: MemoryServer) -> None:
    """However large a partition: besides the batch at hand, at most the one before it lives."""
    alive: list[weakref.ref[pa.RecordBatch]] = []
    most = 0

    def many() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(50):
            most = max(most, sum(reference() is not None for reference in alive))
            batch = pa.record_batch({"row": pa.array([number] * 100)})
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    vote = Participant([Discards(server, "memory")], ASSIGNMENT).vote(7, 0, 0, many())
    assert vote.share.prepared[0].rows == 5000
    assert most <= 1
    assert all(reference() is None for reference in alive)


@pytest.mark.parametrize("operation", ["write", "pre_commit", "pre_commit answered"])
def test_a_task_that_fails_leaves_nothing_that_could_be_committed(
    sink: WatchedSink, server: MemoryServer, operation: str
) -> None:
    sink.failing[operation] = ConnectionError("gone")
    with pytest.raises(ConnectionError):
        Participant([sink], ASSIGNMENT).vote(7, 0, 0, batches([1]))
    assert [entry.state for entry in server.transactions.values()] == [Verdict.ABORTED]


def test_a_task_whose_input_fails_leaves_nothing(sink: WatchedSink, server: MemoryServer) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield from batches([1, 2, 3])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Participant([sink], ASSIGNMENT).vote(7, 0, 0, breaks_off())
    assert server.open() == []
    assert server.rows() == []


@pytest.mark.parametrize("operation", ["begin", "write", "pre_commit"])
def test_a_task_that_fails_in_one_sink_gives_up_in_all(operation: str) -> None:
    servers = [MemoryServer(), MemoryServer()]
    sinks = [WatchedSink(server, "memory") for server in servers]
    sinks[1].failing[operation] = ConnectionError("gone")
    with pytest.raises(ConnectionError):
        Participant(sinks, ASSIGNMENT).vote(7, 0, 0, batches([1]))
    assert servers[0].open() == servers[1].open() == []


def test_a_discard_that_fails_does_not_hide_the_error(sink: WatchedSink) -> None:
    sink.failing["write"] = ConnectionError("the cause")
    sink.failing["abort"] = ConnectionError("and the abort as well")
    with pytest.raises(ConnectionError, match="the cause"):
        Participant([sink], ASSIGNMENT).vote(7, 0, 0, batches([1]))


def test_content_without_a_fingerprint_is_refused_and_nothing_stays_open(
    sink: WatchedSink, server: MemoryServer
) -> None:
    unsupported = pa.record_batch(
        {
            "row": pa.UnionArray.from_dense(
                pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
            )
        }
    )
    with pytest.raises(ConfigurationError, match="row"):
        Participant([sink], ASSIGNMENT).vote(7, 0, 0, iter([unsupported]))
    assert server.open() == []


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_exactly_once_the_task_commits_by_itself(
    server: MemoryServer, guarantee: Guarantee
) -> None:
    class Publishes(MemorySink):
        published: list[int] = []  # noqa: RUF012

        def publish(self, epoch: int, handles: object) -> None:
            self.published.append(epoch)

    sink = Publishes(server)
    sink.published.clear()
    sink.guarantee = guarantee
    participant = Participant([sink], ASSIGNMENT)
    for attempt in range(2):
        participant.vote(7, 0, attempt, batches([1]))
    assert server.rows() == [1, 1]
    assert sink.published == [7, 7]
    # Under a name that no ledger sweeps.
    names = [TransactionName.parse(name) for name in server.transactions]
    assert all(name.identity != ASSIGNMENT.identity for name in names)


def test_steps_of_a_task_come_in_their_order(sink: WatchedSink) -> None:
    moments: list[Moment] = []
    Participant([sink], ASSIGNMENT, trace=moments.append).vote(7, 1, 0, batches([1, 2, 3]))
    assert [f"{moment.step.value} {moment}" for moment in moments] == [
        "1 before-begin",
        "1 after-begin",
        "2 before-write",
        "2 during-write",
        "3 before-pre-commit",
        "3 after-pre-commit",
    ]
    assert {(moment.epoch, moment.partition) for moment in moments} == {(7, 1)}
