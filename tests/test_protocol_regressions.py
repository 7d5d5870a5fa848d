"""Histories that once went wrong, as the state machine found them, cut down to what matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assent.ledger.local import LocalStore
from assent.protocol.errors import FencedError
from assent.protocol.handle import Handle
from assent.protocol.pending import Pending
from assent.protocol.policy import Policy
from assent.protocol.record import RecordKey
from assent.protocol.verdict import Verdict
from assent.testing.memory import MemoryStore
from assent.testing.query import Killed
from assent.testing.simulation.disk import ROOT, Disk, mounted
from assent.testing.simulation.scheduler import Scheduler
from tests.query import Query, WatchedSink, handles

ROWS = [[1, 2], [3]]


def run_on(query: Query, epochs: range) -> None:
    """Another driver takes over and runs these epochs."""
    driver = query.start()
    for epoch in epochs:
        query.run(driver, epoch, [[epoch * 10 + row for row in part] for part in ROWS])


def test_a_commit_that_arrives_twice_aborts_nothing_that_it_decided() -> None:
    query = Query()
    votes = query.write(query.plan(query.start(), 0), 0, ROWS)

    def die(handle: Handle) -> None:
        raise Killed

    query.sink.before_commit = die
    with pytest.raises(Killed):
        query.start().commit(votes, 0)
    query.sink.before_commit = lambda handle: None
    with pytest.raises(FencedError):
        query.start().commit(votes, 0)
    assert [query.state(handle) for handle in handles(votes)] == [Verdict.PENDING] * 2

    query.run(query.start(), 0, ROWS)
    assert query.rows() == [1, 2, 3]
    assert not query.open()


def test_a_driver_that_stood_idle_while_another_pruned_is_fenced() -> None:
    query = Query(policy=Policy(retained_epochs=2))
    run_on(query, range(1))
    idle = query.start()
    query.run(idle, 1, ROWS)
    run_on(query, range(2, 8))
    with pytest.raises(FencedError):
        query.plan(idle, 8)


def test_votes_from_before_another_pruned_are_fenced() -> None:
    query = Query(policy=Policy(retained_epochs=2))
    run_on(query, range(1))
    votes = query.write(query.plan(query.start(), 1), 1, ROWS)
    run_on(query, range(1, 8))
    with pytest.raises(FencedError):
        query.start().commit(votes, 1)


def test_a_planner_that_sleeps_while_another_rewrites_a_torn_epoch_sees_no_loss() -> None:
    query = Query()
    votes = query.write(query.plan(query.start(), 0), 0, ROWS)

    def die(handle: Handle) -> None:
        raise Killed

    query.sink.before_commit = die
    with pytest.raises(Killed):
        query.start().commit(votes, 0)
    query.server.expire([handles(votes)[0].name])

    def sleep(handle: Handle) -> None:
        query.sink.before_commit = lambda handle: None
        driver = query.start()
        query.run(driver, 0, ROWS)
        query.run(driver, 1, [[4], [5]])

    query.sink.before_commit = sleep
    with pytest.raises(FencedError):
        query.start().plan()
    assert query.rows() == [1, 2, 3, 4, 5]


def test_a_run_that_takes_its_term_while_another_prunes_goes_on() -> None:
    store = MemoryStore()
    query = Query(store=store, policy=Policy(retained_epochs=2))
    run_on(query, range(1))
    run_on(query, range(1, 2))

    def sleep(operation: str) -> None:
        if operation.startswith("create records/") and operation.endswith("answered"):
            store.interfere = lambda operation: None
            run_on(query, range(2, 8))

    store.interfere = sleep
    late = query.start()
    query.run(late, 8, ROWS)
    assert [decision.epoch for decision in query.decisions()][-1] == 8


def test_an_abort_by_a_fenced_run_spares_what_the_newer_run_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a store knows places only modulo two."""
    query = Query()

    def pending(sink: WatchedSink, identity: str) -> list[Pending]:
        return [
            replace(one, place=one.place % 2, modulus=2)
            for one in super(WatchedSink, sink).pending(identity)
        ]

    monkeypatch.setattr(WatchedSink, "pending", pending)
    late = query.start()
    votes = query.write(query.plan(late, 0), 0, ROWS)
    newer = query.start()
    query.run(newer, 0, ROWS)
    running = query.write(query.plan(newer, 1), 1, [[4], [5]])
    late.abort(votes, 0)
    assert [query.state(handle) for handle in handles(running)] == [Verdict.PENDING] * 2
    newer.commit(running, 1)
    assert query.rows() == [1, 2, 3, 4, 5]


def test_a_run_that_takes_its_term_from_one_that_goes_on_and_prunes_starts_over() -> None:
    store = MemoryStore()
    query = Query(store=store, policy=Policy(retained_epochs=2))
    running = query.start()
    query.run(running, 0, ROWS)
    query.run(running, 1, ROWS)

    def sleep(operation: str) -> None:
        if operation.startswith("read records/"):
            store.interfere = lambda operation: None
            for epoch in range(2, 8):
                query.run(running, epoch, ROWS)

    store.interfere = sleep
    assert query.plan(query.start(), 8).key == RecordKey(8, 1)


def test_an_abort_that_sleeps_while_another_run_prunes_is_fenced() -> None:
    store = MemoryStore()
    query = Query(store=store, policy=Policy(retained_epochs=2))
    late = query.start()
    votes = query.write(query.plan(late, 0), 0, ROWS)
    late.commit(votes, 0)
    query.checkpoint.committed.add(0)

    def sleep(operation: str) -> None:
        if operation.startswith("read records/"):
            store.interfere = lambda operation: None
            run_on(query, range(1, 8))

    store.interfere = sleep
    with pytest.raises(FencedError):
        late.abort(votes, 0)


def test_a_key_is_given_to_one_plan_only() -> None:
    """Nobody voted, so nobody could void it: tasks of the first plan may still be at work."""
    query = Query()
    coordinator = query.start()
    first = query.plan(coordinator, 0)
    coordinator.abort((), 0)
    second = query.plan(coordinator, 0)
    assert second.key == RecordKey(0, 1)
    late = query.write(first, 0, ROWS)
    coordinator.commit(query.write(second, 0, ROWS), 0)
    assert query.rows() == [1, 2, 3]
    query.checkpoint.committed.add(0)
    query.plan(coordinator, 1)
    assert [query.state(handle) for handle in handles(late)] == [Verdict.ABORTED] * 2


def dies_at_flush(disk: Disk, number: int) -> None:
    """The process is killed before the n-th flush from now, and its successor is not."""
    flush = disk.fsync

    def die(descriptor: int) -> None:
        nonlocal number
        number -= 1
        if number == 0:
            disk.fsync = flush  # type: ignore[method-assign]
            raise Killed
        flush(descriptor)

    disk.fsync = die  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_what_a_store_creates_after_another_was_killed_is_durable(number: int) -> None:
    """Each folder has to be flushed into the one above, whoever has made it."""
    disk = Disk(Scheduler(), lambda path, content: None)
    with mounted(disk):
        dies_at_flush(disk, number)
        with pytest.raises(Killed):
            LocalStore(ROOT).create("records/a", b"a")
        LocalStore(ROOT).create("records/b", b"b")
    assert disk.is_durable(f"{ROOT}/records/b")


def test_a_decision_is_flushed_before_another_process_acts_on_it() -> None:
    """The commit process is killed between link and flush; the planning process lives on."""
    disk = Disk(Scheduler(), lambda path, content: None)
    with mounted(disk):
        query = Query(store=LocalStore(ROOT))
        planner = query.start()
        query.run(planner, 0, ROWS)
        votes = query.write(query.plan(planner, 1), 1, [[4], [5]])
        dies_at_flush(disk, 2)
        with pytest.raises(Killed):
            query.start().commit(votes, 1)
        [decision] = [key for key in query.ledger.record_keys() if key.place == 1]
        path = f"{ROOT}/records/{decision.place:012d}-{decision.term:08d}.json"
        assert not disk.is_durable(path)
        seen: list[bool] = []
        query.sink.before_commit = lambda handle: seen.append(disk.is_durable(path))
        query.plan(planner, 1)
        assert query.rows() == [1, 2, 3, 4, 5]
    assert seen == [True, True]
