"""The rules of the protocol, one by one, each under its own name."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.ledger.store import AlreadyExistsError
from assent.protocol.errors import (
    FencedError,
    IdentityError,
    InDoubtError,
    LedgerError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.handle import Handle
from assent.protocol.json_value import dump
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.policy import Policy
from assent.protocol.record import Author, RecordKey, Void
from assent.protocol.step import Step, When
from assent.protocol.sweeper import Sweeper
from assent.protocol.verdict import Verdict
from assent.testing.memory import MemoryStore
from tests.query import Query, WatchedSink, handles

DAY = 24 * 3600.0


@pytest.fixture
def query() -> Query:
    return Query()


# Rules


def test_rule_1_nothing_is_committed_that_no_durable_decision_names(
    query: Query, tmp_path: Path
) -> None:
    query = Query(LocalStore(str(tmp_path / "ledger")))
    committed = []

    def named(handle: Handle) -> None:
        files = (tmp_path / "ledger" / "records").glob("[!.]*.json")
        decisions = [json.loads(file.read_bytes()) for file in files]
        names = [
            prepared["handle"]["name"]
            for decision in decisions
            for share in decision.get("shares", ())
            for prepared in share["prepared"]
        ]
        assert handle.name in names
        committed.append(handle)

    query.sink.before_commit = named
    coordinator = query.start()
    for epoch in range(3):
        query.run(coordinator, epoch, [[epoch], [epoch + 10]])
    query.die(When.AFTER, Step.DECIDE, 3, [[3]])
    query.run(query.start(), 3, [[3]])
    assert len(committed) == 7
    assert query.rows() == [0, 1, 10, 11, 12, 2, 3]


def test_rule_1_a_decision_that_was_not_written_commits_nothing(query: Query) -> None:
    store = MemoryStore()
    query = Query(store)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])

    def disk_is_full(operation: str) -> None:
        if operation.startswith("create records"):
            raise OSError(28, "No space left on device")

    store.interfere = disk_is_full
    with pytest.raises(InDoubtError, match="Nothing was committed"):
        coordinator.commit(votes, 0)
    assert query.rows() == []
    assert "commit" not in query.sink.operations


def test_rule_2_a_decision_is_never_changed(query: Query) -> None:
    store = MemoryStore()
    query = Query(store)
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    before = {name: content for name, content in store.files.items() if "records" in name}
    [decision] = query.decisions()
    other = replace(decision, epoch=99, author=Author("other", "run"))
    assert query.ledger.write(other) == decision
    query.server.expire(query.server.open()[:1])
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]
    assert len(query.amendments()) == 1
    assert {name: store.files[name] for name in before} == before


def test_rule_2_all_handles_of_a_decision_get_committed(query: Query) -> None:
    query.die(When.DURING, Step.COMMIT, 0, [[1], [2], [3]])
    assert query.rows() == [1]
    query.plan(query.start(), 0)
    assert query.rows() == [1, 2, 3]


def test_rule_2_or_the_query_stops_with_an_error_that_names_them(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    query.sink.failing["commit"] = RetriableError("the store is away")
    with pytest.raises(RetriableError) as stopped:
        coordinator.commit(votes, 0)
    for handle in handles(votes):
        assert str(handle) in str(stopped.value)


def test_rule_3_abort_never_touches_a_handle_that_a_decision_names(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    query.sink.failing["commit"] = RetriableError("the store is away")
    with pytest.raises(RetriableError):
        coordinator.commit(votes, 0)
    query.start().abort(votes, 0)  # Spark calls it in a new process
    assert "abort" not in query.sink.operations
    assert len(query.open()) == 2
    query.sink.failing.clear()
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_rule_4_a_handle_names_one_transaction_for_ever(query: Query) -> None:
    coordinator = query.start()
    seen = []
    for epoch in range(3):
        assignment = query.plan(coordinator, epoch)
        seen += handles(query.write(assignment, epoch, [[1], [2]], attempt=0))
        votes = query.write(assignment, epoch, [[1], [2]], attempt=1)
        seen += handles(votes)
        coordinator.commit(votes, epoch)
        query.checkpoint.committed.add(epoch)
    coordinator = query.start()
    seen += handles(query.write(query.plan(coordinator, 3), 3, [[1], [2]]))
    assert len(seen) == 14
    assert len(set(seen)) == len(seen)


def test_rule_4_a_handle_is_its_kind_and_name() -> None:
    assert Handle("memory", "a", {"x": "1"}) == Handle("memory", "a", {"x": "2"})
    assert Handle("memory", "a") != Handle("memory", "b")
    assert Handle("memory", "a") != Handle("files", "a")


def test_rule_5_what_an_unfinished_decision_names_is_not_swept(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.sink.failing["commit"] = RetriableError("the store is away")
    with pytest.raises(RetriableError):
        query.start().plan()
    # Whoever sweeps, whenever, for whatever next place.
    sweeper = Sweeper(query.ledger, query.sinks)
    identity = query.ledger.find()
    assert identity is not None
    assert sweeper.sweep(identity.identity, RecordKey(9, 9)) == 0
    assert len(query.open()) == 2


def test_rule_5_holds_where_names_carry_the_place_only_in_part(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1]])
    [decision] = query.decisions()
    [prepared] = decision.shares[0].prepared
    sweeper = Sweeper(query.ledger, query.sinks)
    known = Pending(prepared.handle, term=0, place=0, modulus=2)
    other = replace(known, handle=Handle("memory", "other"))
    assert sweeper.dead([known, other], 0, RecordKey(5, 1)) == [other]
    # The id of the coming place is in use, perhaps by a task of the epoch that is being written.
    coming = Pending(Handle("memory", "x"), 1, 1, modulus=2)
    before = Pending(Handle("memory", "x"), 1, 0, modulus=2)
    assert sweeper.dead([coming, before], 0, RecordKey(5, 1)) == [before]


def test_rule_6_losers_of_speculation_are_aborted_with_their_epoch(query: Query) -> None:
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    [loser] = handles([query.task(assignment, 0, 0, [1])])
    coordinator.commit(query.write(assignment, 0, [[1], [2]], attempt=1), 0)
    assert query.state(loser) is Verdict.ABORTED
    assert query.rows() == [1, 2]
    assert query.open() == []


def test_rule_6_votes_that_reached_nobody_are_aborted_within_the_next_epoch(query: Query) -> None:
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    coordinator.abort([], 0, assignment)
    query.write(assignment, 0, [[1], [2]])  # tasks may finish after abort has returned
    assert len(query.open()) == 2
    query.plan(coordinator, 0)
    assert query.open() == []


def test_rule_6_what_a_dead_driver_left_is_aborted_by_the_next(query: Query) -> None:
    query.die(When.BEFORE, Step.DECIDE, 0, [[1], [2]])
    assert len(query.open()) == 2
    coordinator = query.start()
    query.plan(coordinator, 0)
    assert query.open() == []
    query.run(coordinator, 0, [[3]])
    assert query.rows() == [3]


def test_rule_6_the_transactions_of_another_query_are_left_alone(query: Query) -> None:
    other = Query()
    other.servers[:] = query.servers
    other.sinks[:] = [WatchedSink(query.server, "memory")]
    foreign = other.write(other.plan(other.start(), 0), 0, [[7]])
    query.run(query.start(), 0, [[1]])
    query.plan(query.start(), 1)
    assert query.open() == [handle.name for handle in handles(foreign)]


def test_rule_6_a_store_that_cannot_be_swept_does_not_stop_the_epoch(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.die(When.BEFORE, Step.DECIDE, 0, [[1]])
    query.sink.failing["pending"] = RetriableError("busy")
    coordinator = query.start()
    query.run(coordinator, 0, [[1]])
    assert "could not sweep memory" in caplog.text
    assert len(query.open()) == 1
    query.sink.failing.clear()
    query.run(coordinator, 1, [[2]])
    assert query.open() == []


@pytest.mark.parametrize(
    ("when", "step"),
    [
        (When.AFTER, Step.DECIDE),
        (When.DURING, Step.COMMIT),
        (When.AFTER, Step.COMMIT),
        (When.AFTER, Step.COMPLETE),
    ],
)
def test_rule_7_a_replayed_epoch_with_a_decision_writes_nothing_new(
    query: Query, when: When, step: Step
) -> None:
    query.die(when, step, 0, [[1], [2]])
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    assert query.rows() == [1, 2]
    begun = query.sink.operations.count("begin")
    votes = query.write(assignment, 0, [[1], [2]])
    assert all(vote.skipped for vote in votes)
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    query.run(coordinator, 1, [[3]])
    assert query.sink.operations.count("begin") == begun + 1
    assert query.rows() == [1, 2, 3]
    assert [decision.epoch for decision in query.decisions()] == [0, 1]


def test_rule_7_a_replay_with_other_input_is_refused_when_it_is_planned(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1]])
    query.checkpoint.offsets[0] = "digest of something else"
    with pytest.raises(ReplayError, match="epoch 0 was decided for other input"):
        query.start().plan()
    assert query.rows() == []


def test_rule_7_a_replay_with_other_input_is_refused_when_it_is_committed(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1]])
    # The planning side of a data source may run before Spark has fixed the input.
    assignment = query.start().plan()
    query.checkpoint.offsets[0] = "digest of something else"
    with pytest.raises(ReplayError, match="epoch 0 was decided for other input"):
        query.start().commit(query.write(assignment, 0, [[1]]), 0)


def test_rule_8_the_driver_that_lost_aborts_its_votes_and_stops(query: Query) -> None:
    older, newer = query.start(), query.start()
    votes = query.write(query.plan(older, 0), 0, [[1], [2]])
    other_votes = query.write(query.plan(newer, 0), 0, [[1], [2]])
    with pytest.raises(FencedError, match="only one driver"):
        older.commit(votes, 0)
    assert [query.state(handle) for handle in handles(votes)] == [Verdict.ABORTED] * 2
    newer.commit(other_votes, 0)
    assert query.rows() == [1, 2]
    assert len(query.decisions()) == 1
    with pytest.raises(FencedError):
        older.plan()


def test_rule_8_a_decision_counts_whoever_made_it(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    newer = query.start()
    other_votes = query.write(query.plan(newer, 0), 0, [[1], [2]])
    assert all(vote.skipped for vote in other_votes)
    newer.commit(other_votes, 0)
    assert query.rows() == [1, 2]
    assert len(query.decisions()) == 1


def test_rule_8_the_older_driver_cannot_decide_at_any_place(query: Query) -> None:
    older, newer = query.start(), query.start()
    query.run(older, 0, [[1]])
    votes = query.write(query.plan(older, 1), 1, [[2]])
    query.run(newer, 1, [[2]])
    query.run(newer, 2, [[3]])
    with pytest.raises(FencedError):
        older.commit(votes, 1)
    older.abort(votes, 1)
    query.run(newer, 3, [[4]])
    assert query.rows() == [1, 2, 3, 4]
    assert query.open() == []


def test_rule_9_cost_per_epoch_does_not_grow_with_the_age_of_the_query() -> None:
    store = MemoryStore()
    operations: list[str] = []
    store.interfere = operations.append
    query = Query(store, policy=Policy(retained_epochs=8))
    coordinator = query.start()
    cost, files = [], []
    for epoch in range(200):
        operations.clear()
        query.run(coordinator, epoch, [[epoch]])
        cost.append(len(operations))
        files.append(len(store.files))
    assert max(cost[20:]) <= max(cost[:20])
    assert max(files) <= 8 + 8 // 4 + 4
    created = [operation for operation in operations if operation.startswith("create")]
    assert len(created) == 2  # one durable write per epoch: begun, and answered
    read = [operation for operation in operations if operation.startswith("read records")]
    # What was decided since the last plan, that nothing follows it, and once more to commit.
    assert len(read) <= 3


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[: len(content) // 2], id="truncated"),
        pytest.param(
            lambda content: dump({**json.loads(content), "version": 2}).encode(), id="newer"
        ),
        pytest.param(lambda content: b'{"a":1}', id="foreign"),
    ],
)
def test_rule_10_a_record_that_cannot_be_read_is_an_error_that_names_the_file(
    damage: Callable[[bytes], bytes],
) -> None:
    store = MemoryStore()
    query = Query(store)
    query.run(query.start(), 0, [[1]])
    for name in list(store.files):
        content = store.files[name]
        store.files[name] = damage(content)
        with pytest.raises(LedgerError, match=name):
            query.start().plan()
        store.files[name] = content
    query.start().plan()


def test_rule_10_the_ledger_is_plain_versioned_json() -> None:
    store = MemoryStore()
    query = Query(store)
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.server.expire(query.server.open()[:1])
    query.run(query.start(), 0, [[1], [2]])
    kinds = set()
    for name, content in store.files.items():
        assert name.endswith(".json")
        value = json.loads(content.decode("ascii"))
        assert value["version"] == 1
        kinds.add(value["kind"])
    assert kinds == {"identity", "term", "decision", "void", "amendment"}


# Identity, runs and terms


def test_identity_is_created_once_and_names_derive_from_it(query: Query) -> None:
    assignment = query.plan(query.start(), 0)
    again = query.plan(query.start(), 0)
    assert assignment.identity == again.identity
    [handle] = handles([query.task(again, 0, 0, [1])])
    assert TransactionName.parse(handle.name).identity == assignment.identity


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        pytest.param({"location": "memory:elsewhere"}, "assent adopt", id="another place"),
        pytest.param({"query_id": "another"}, "another checkpointLocation", id="another query"),
        pytest.param({"targets": ("a",)}, "new checkpointLocation", id="another sink"),
        pytest.param({"targets": ("memory", "a")}, "new checkpointLocation", id="more sinks"),
    ],
)
def test_identity_of_another_owner_is_refused_with_the_remedy(
    change: dict[str, object], remedy: str
) -> None:
    store = MemoryStore()
    query = Query(store)
    query.run(query.start(), 0, [[1]])
    if "location" in change:
        store = MemoryStore(store.files, str(change["location"]))
    targets = change.get("targets", ("memory",))
    assert isinstance(targets, tuple)
    other = Query(store, targets, checkpoint=query.checkpoint)
    if "query_id" in change:
        query.checkpoint.query_id = str(change["query_id"])
    before = dict(store.files)
    with pytest.raises(IdentityError, match=remedy):
        other.start().plan()
    assert store.files == before


def test_terms_close_then_take_voids_the_next_free_place_of_the_newest_term(query: Query) -> None:
    first = query.start()
    query.run(first, 0, [[1]])
    query.run(first, 1, [[2]])
    assignment = query.plan(query.start(), 2)
    assert query.voids() == [RecordKey(2, 0)]
    assert assignment.key == RecordKey(2, 1)


def test_terms_close_then_take_honours_a_decision_that_came_first() -> None:
    """A decision lands between the look at the ledger and the void: the next place is voided."""
    store = MemoryStore()
    query = Query(store)
    older = query.start()
    query.run(older, 0, [[1]])
    votes = query.write(query.plan(older, 1), 1, [[2]])

    def decide_first(operation: str) -> None:
        if operation.startswith("create records/000000000001"):
            store.interfere = lambda operation: None
            older.commit(votes, 1)

    store.interfere = decide_first
    assignment = query.plan(query.start(), 1)
    assert query.voids() == [RecordKey(2, 0)]
    assert assignment.key == RecordKey(2, 1)
    assert assignment.decided is not None
    assert assignment.decided.epoch == 1
    assert query.rows() == [1, 2]


def test_terms_close_then_take_voids_higher_than_a_decision_past_the_void() -> None:
    """The run is at its next place already when its last one is voided: as listings may lag."""
    store = MemoryStore()
    query = Query(store)
    query.run(query.start(), 0, [[1]])
    [decision] = query.decisions()
    late = replace(decision, key=RecordKey(2, 0), epoch=1, digest="digest of 1", shares=())

    def land(operation: str) -> None:
        if operation == "create records/000000000001-00000000.json answered":
            store.interfere = lambda operation: None
            query.ledger.write(late)

    store.interfere = land
    query.checkpoint.offsets[1] = "digest of 1"
    assignment = query.start().plan()
    assert query.voids() == [RecordKey(1, 0), RecordKey(3, 0)]
    assert assignment.key == RecordKey(3, 1)


def test_terms_close_then_take_starts_over_when_another_run_took_the_term() -> None:
    store = MemoryStore()
    query = Query(store)
    query.run(query.start(), 0, [[1]])
    winner = query.start()

    def overtake(operation: str) -> None:
        if operation == "create terms/00000001.json":
            store.interfere = lambda operation: None
            query.plan(winner, 1)

    store.interfere = overtake
    loser = query.start()
    assignment = query.plan(loser, 1)
    assert assignment.key == RecordKey(1, 2)
    assert query.voids() == [RecordKey(1, 0), RecordKey(1, 1)]
    with pytest.raises(FencedError):
        winner.plan()


def test_places_start_where_the_predecessor_was_voided_and_grow_by_one(query: Query) -> None:
    first = query.start()
    for epoch in range(3):
        query.run(first, epoch, [[epoch]])
    second = query.start()
    for epoch in range(3, 5):
        query.run(second, epoch, [[epoch]])
    keys = [decision.key for decision in query.decisions()]
    assert keys == [RecordKey(place, int(place > 2)) for place in range(5)]


def test_places_come_to_the_committing_side_with_the_votes(query: Query) -> None:
    """A place that it computed from a listing would be free, and would be decided."""
    planner = query.start()
    query.run(planner, 0, [[1]])
    votes = query.write(query.plan(planner, 1), 1, [[2]])
    query.plan(query.start(), 1)
    with pytest.raises(FencedError):
        query.start().commit(votes, 1)
    assert query.voids() == [RecordKey(1, 0)]
    assert query.rows() == [1]


def test_places_are_refused_to_a_planner_that_sees_a_higher_term(query: Query) -> None:
    older = query.start()
    query.run(older, 0, [[1]])
    query.plan(query.start(), 1)
    with pytest.raises(FencedError, match="closed term 0"):
        older.plan()


def test_names_carry_identity_term_place_partition_and_a_nonce(query: Query) -> None:
    query.run(query.start(), 0, [[1]])
    assignment = query.plan(query.start(), 1)
    first, again = handles(
        [query.task(assignment, 1, 5, [2]), query.task(assignment, 1, 5, [2], attempt=1)]
    )
    name, other = TransactionName.parse(first.name), TransactionName.parse(again.name)
    assert (name.identity, name.term, name.place, name.partition) == (assignment.identity, 1, 1, 5)
    assert replace(other, nonce=name.nonce) == name
    assert other.nonce != name.nonce


def test_names_of_two_sinks_of_one_task_differ() -> None:
    query = Query(targets=("a", "b"))
    first, second = handles([query.task(query.plan(query.start(), 0), 0, 0, [1])])
    assert first != second


@pytest.mark.parametrize(
    ("term", "place", "dead"),
    [
        pytest.param(0, 0, True, id="a closed term"),
        pytest.param(0, 7, True, id="a closed term, past its void"),
        pytest.param(1, 1, True, id="a decided place of the own term"),
        pytest.param(1, 2, False, id="the coming place of the own term"),
        pytest.param(1, 3, False, id="a later place of the own term"),
        pytest.param(2, 0, False, id="a newer term"),
    ],
)
def test_dead_transactions_and_no_others_are_swept(
    query: Query, term: int, place: int, dead: bool
) -> None:
    query.run(query.start(), 0, [[0]])
    coordinator = query.start()
    assignment = query.plan(coordinator, 1)
    assert assignment.key == RecordKey(1, 1)
    votes = query.write(assignment, 1, [[1]])
    name = TransactionName(assignment.identity, term, place, 0, "abcd")
    query.sink.begin(name, 2)
    coordinator.commit(votes, 1)
    assert (str(name) not in query.open()) is dead


def test_abort_voids_first_its_own_place(query: Query) -> None:
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    votes = query.write(assignment, 0, [[1], [2]])
    standing: list[object] = []

    def look(operation: str) -> None:
        if operation == "pending":
            raise RetriableError("the store cannot list, so nothing is swept")
        if operation == "abort":
            standing.append(query.ledger.find_record(assignment.key))

    query.sink.interfere = look
    coordinator.abort(votes, 0)
    assert [type(record) for record in standing] == [Void, Void]
    assert query.open() == []
    with pytest.raises(FencedError):
        coordinator.commit(votes, 0)
    assert query.rows() == []


def test_abort_voids_first_and_aborts_nothing_if_a_decision_is_there(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    query.sink.failing["commit"] = RetriableError("away")
    with pytest.raises(RetriableError):
        coordinator.commit(votes, 0)
    coordinator.abort(votes, 0)
    assert query.voids() == []
    assert "abort" not in query.sink.operations


def test_abort_voids_first_and_goes_on_in_a_new_term(query: Query) -> None:
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    coordinator.abort(query.write(assignment, 0, [[1]]), 0)
    query.run(coordinator, 0, [[1]])
    [decision] = query.decisions()
    assert decision.key == RecordKey(0, 1)
    assert query.rows() == [1]


def test_lost_answers_to_a_decision_are_found_by_reading_it_back() -> None:
    store = MemoryStore()
    query = Query(store)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])

    def lose(operation: str) -> None:
        if operation == "create records/000000000000-00000000.json answered":
            store.interfere = lambda operation: None
            raise TimeoutError("no answer")

    store.interfere = lose
    coordinator.commit(votes, 0)
    assert query.rows() == [1, 2]
    assert query.voids() == []


def test_lost_answers_to_a_term_are_found_by_reading_it_back(query: Query) -> None:
    class Forgetful(MemoryStore):
        """Creates, and says that it was there: as a retry inside a client library would."""

        def create(self, name: str, content: bytes) -> None:
            super().create(name, content)
            if name.startswith("terms"):
                raise AlreadyExistsError(name)

    term = Ledger(Forgetful(), query.clock).take("run").term
    assert term.number == 0


def test_lost_answers_of_a_create_that_lands_later_are_voided() -> None:
    store = MemoryStore()
    query = Query(store)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    votes = query.write(assignment, 0, [[1], [2]])
    write = store.create

    def hold_back(operation: str) -> None:
        if operation == "create records/000000000000-00000000.json":
            store.interfere = lambda operation: None
            raise TimeoutError("no answer")

    store.interfere = hold_back
    with pytest.raises(RetriableError, match="not decided"):
        coordinator.commit(votes, 0)
    with pytest.raises(AlreadyExistsError):
        write("records/000000000000-00000000.json", b"the write that was held back")
    query.run(coordinator, 0, [[1], [2]])
    assert query.rows() == [1, 2]
    assert query.open() == []


def test_epochs_only_grow_when_planned(query: Query) -> None:
    coordinator = query.start()
    for epoch in range(3):
        query.run(coordinator, epoch, [[epoch]])
    query.checkpoint.offsets = {0: "digest of 0", 1: "digest of 1"}
    query.checkpoint.committed = {0}
    with pytest.raises(ReplayError, match="at epoch 1, but epoch 2 is decided"):
        query.start().plan()
    assert query.rows() == [0, 1, 2]


def test_epochs_only_grow_in_the_tasks_and_when_committed(query: Query) -> None:
    coordinator = query.start()
    query.run(coordinator, 0, [[0]])
    early = query.write(query.plan(coordinator, 1), 1, [[1]])
    coordinator.commit(early, 1)
    query.checkpoint.committed.add(1)
    late = query.plan(coordinator, 2)
    with pytest.raises(ReplayError, match="epoch 1 is decided already"):
        query.task(late, 0, 0, [0])
    forged = [replace(vote, epoch=0, assignment=late) for vote in early]
    with pytest.raises(ReplayError, match="epoch 1 is decided already"):
        coordinator.commit(forged, 0)
    assert query.rows() == [0, 1]


def test_epochs_only_grow_and_may_start_late(query: Query) -> None:
    """A query may take Assent up at any epoch: places count from 0, epochs do not."""
    coordinator = query.start()
    query.run(coordinator, 41, [[1]])
    query.run(coordinator, 42, [[2]])
    assert [(decision.key.place, decision.epoch) for decision in query.decisions()] == [
        (0, 41),
        (1, 42),
    ]


def test_amendments_are_ordinary_records_that_name_what_they_amend(query: Query) -> None:
    coordinator = query.start()
    query.run(coordinator, 0, [[0]])
    votes = query.write(query.plan(coordinator, 1), 1, [[1], [2]])
    query.server.expire([handles(votes)[1].name])
    with pytest.raises(TornEpochError):
        coordinator.commit(votes, 1)
    query.run(coordinator, 1, [[1], [2]])
    [amendment] = query.amendments()
    assert amendment.key == RecordKey(2, 0)
    assert amendment.amends == query.decisions()[1].key == RecordKey(1, 0)
    assert [share.partition for share in amendment.shares] == [1]
    assert query.rows() == [0, 1, 2]


def test_amendments_are_fenced_like_decisions(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.server.expire(query.open()[:1])
    older, newer = query.start(), query.start()
    older_votes = query.write(query.plan(older, 0), 0, [[1], [2]])
    newer_votes = query.write(query.plan(newer, 0), 0, [[1], [2]])
    newer.commit(newer_votes, 0)
    with pytest.raises(FencedError):
        older.commit(older_votes, 0)
    assert query.rows() == [1, 2]
    assert query.open() == []


def test_retention_keeps_one_void_per_term_and_prunes_them_by_age_only() -> None:
    query = Query(policy=Policy(retained_epochs=4))
    for epoch in range(150):
        query.run(query.start(), epoch, [[epoch]])
    voids = query.voids()
    assert [void.term for void in voids] == list(range(149))
    query.clock.now += 31 * DAY
    for epoch in range(150, 154):
        query.run(query.start(), epoch, [[epoch]])
    assert [void.term for void in query.voids()] == list(range(54, 153))
    assert query.rows() == sorted(range(154), key=str)


def test_retention_prunes_the_void_of_a_run_that_closed_a_term_at_the_same_time() -> None:
    """Two runs may both find a free place: the higher void says all that the lower one says."""
    query = Query(policy=Policy(retained_epochs=4))
    query.run(query.start(), 0, [[0]])
    coordinator = query.start()
    query.run(coordinator, 1, [[1]])
    assert query.voids() == [RecordKey(1, 0)]
    query.ledger.write(Void(RecordKey(2, 0), Author("late", "abcd"), 0.0))
    for epoch in range(2, 8):
        query.run(coordinator, epoch, [[epoch]])
    assert query.voids() == [RecordKey(2, 0)]
    assert query.rows() == list(range(8))


def test_retention_keeps_the_newest_decision_however_many_terms_are_younger() -> None:
    """A query that fails at every start for a month still knows what it had decided."""
    query = Query()
    query.run(query.start(), 0, [[0]])
    for _ in range(250):
        query.clock.now += DAY
        query.plan(query.start(), 1)
    assert len(query.voids()) <= 250
    assignment = query.plan(query.start(), 1)
    assert assignment.decided is not None
    assert assignment.decided.epoch == 0
    query.run(query.start(), 1, [[1]])
    assert query.rows() == [0, 1]
    assert len(query.voids()) < 110


def test_retention_prunes_a_decision_only_together_with_its_amendments() -> None:
    query = Query(policy=Policy(retained_epochs=4))
    coordinator = query.start()
    kept: set[int] = set()
    torn = {epoch for epoch in range(60) if epoch % 3}
    for epoch in range(60):
        votes = query.write(query.plan(coordinator, epoch), epoch, [[epoch], [epoch + 100]])
        if epoch in torn:
            query.server.expire([handles(votes)[0].name])
            with pytest.raises(TornEpochError):
                coordinator.commit(votes, epoch)
        query.run(coordinator, epoch, [[epoch], [epoch + 100]])
        kept = {decision.epoch for decision in query.decisions()}
        assert {amendment.epoch for amendment in query.amendments()} == kept & torn
    assert len(kept) <= 5
    assert len(query.rows()) == 120


def test_completion_is_known_from_sparks_commit_log_and_no_store_is_asked(query: Query) -> None:
    query.run(query.start(), 0, [[1]])
    query.sink.forgotten.update(query.server.transactions)
    query.sink.failing["commit"] = RetriableError("was asked")
    query.plan(query.start(), 1)
    assert query.rows() == [1]


def test_completion_is_known_from_a_later_decision(query: Query) -> None:
    coordinator = query.start()
    query.run_up_to_commit_log(coordinator, 0, [[0]])
    query.run(coordinator, 1, [[1]])
    assert query.decisions()[1].completed_through == 0
    query.sink.operations.clear()
    query.plan(query.start(), 2)
    assert "commit" not in query.sink.operations


def test_completion_is_not_known_of_an_epoch_without_either(query: Query) -> None:
    query.run_up_to_commit_log(query.start(), 0, [[1]])
    query.sink.operations.clear()
    query.plan(query.start(), 0)
    assert query.sink.operations.count("commit") == 1


def test_who_takes_terms_is_the_planning_side_alone(query: Query) -> None:
    planner = query.start()
    for epoch in range(3):
        votes = query.write(query.plan(planner, epoch), epoch, [[epoch]])
        query.start().commit(votes, epoch)  # in another process, as under Spark
        query.checkpoint.committed.add(epoch)
    votes = query.write(query.plan(planner, 3), 3, [[3]])
    query.start().abort(votes, 3)
    newest = query.ledger.newest_term()
    assert newest is not None
    assert newest.number == 0
    assert query.rows() == [0, 1, 2]


def test_who_constructs_a_coordinator_has_touched_nothing() -> None:
    store = MemoryStore()
    operations: list[str] = []
    store.interfere = operations.append
    query = Query(store)
    query.start()
    assert operations == []
    assert query.sink.operations == []


def test_who_plans_looks_at_the_ledger_at_every_epoch(query: Query) -> None:
    planner = query.start()
    query.run(planner, 0, [[0]])
    # The same planning process serves a new run of the query, whose predecessor was voided.
    query.ledger.write(Void(RecordKey(1, 0), Author("another run", "x"), 0.0))
    with pytest.raises(FencedError):
        planner.plan()


def test_create_if_absent_is_atomic_with_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off at any operation on the disk, a record is there as a whole or not at all."""
    content = b"x" * 100_000
    real = {name: getattr(os, name) for name in ("fsync", "link", "open")}
    for name in real:
        for nth in range(4):
            calls = 0

            def cut(*arguments: Any, name: str = name, nth: int = nth, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > nth:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real[name](*arguments, **named)

            store = LocalStore(str(tmp_path / f"{name}{nth}"))
            with monkeypatch.context() as patch:
                patch.setattr(os, name, cut)
                try:
                    store.create("records/one.json", content)
                except Exception:
                    pass
            names = store.list("records")
            assert names in ([], ["one.json"])
            assert all(store.read(f"records/{found}") == content for found in names)
            if not names:
                store.create("records/one.json", content)
            with pytest.raises(AlreadyExistsError):
                store.create("records/one.json", b"other")
            assert store.read("records/one.json") == content
