"""The coordinator's steps, with a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from assent.ledger.settlement import settle
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import (
    InDoubtError,
    LossError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.handle import Handle
from assent.protocol.parallel import in_threads
from assent.protocol.policy import OnTimeout, Policy
from assent.protocol.record import Author, Decision, RecordKey, Settlement, Void
from assent.protocol.step import Moment, Step, Trace, When
from assent.protocol.verdict import Verdict
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryStore
from assent.testing.query import Killed
from tests.query import NotingListener, Query, Rows, handles


@pytest.fixture
def query() -> Query:
    return Query()


def decide_by_hand(query: Query, epochs: int) -> list[Handle]:
    """A ledger in which several decided epochs are unfinished, each with one row."""
    found = []
    assignment = query.plan(query.start(), 0)
    for epoch in range(epochs):
        query.checkpoint.offsets[epoch] = f"digest of {epoch}"
        mine = replace(assignment, key=RecordKey(epoch, 0))
        votes = query.write(mine, epoch, [[epoch]])
        query.ledger.write(
            Decision(
                mine.key,
                Author(mine.run, f"nonce {epoch}"),
                epoch,
                f"digest of {epoch}",
                None,
                query.clock(),
                tasks=1,
                shares=tuple(vote.share for vote in votes),
            )
        )
        found += handles(votes)
    return found


def tear(query: Query, epoch: int, rows: Rows, *partitions: int) -> None:
    """An epoch that was decided, and of which the store gave up some partitions since."""
    query.die(When.AFTER, Step.DECIDE, epoch, rows)
    decision = query.decisions()[-1]
    query.server.expire(
        prepared.handle.name
        for share in decision.shares
        for prepared in share.prepared
        if share.partition in partitions
    )


# Steps


def test_steps_come_in_their_order(query: Query) -> None:
    moments: list[str] = []

    def trace(moment: Moment) -> None:
        moments.append(f"{moment.step.value} {moment}")

    query.run(query.start(trace=trace), 0, [[1], [2]])
    assert moments == [
        "0 before-recover",
        "0 after-recover",
        "4 before-decide",
        "4 after-decide",
        "5 before-commit",
        "5 during-commit",
        "5 during-commit",
        "5 during-commit",  # the sink publishes
        "5 after-commit",
        "6 before-complete",
        "6 after-complete",
    ]


@pytest.mark.parametrize(
    ("when", "step"),
    [
        (When.BEFORE, Step.RECOVER),
        (When.AFTER, Step.RECOVER),
        (When.BEFORE, Step.DECIDE),
        (When.AFTER, Step.DECIDE),
        (When.BEFORE, Step.COMMIT),
        (When.DURING, Step.COMMIT),
        (When.AFTER, Step.COMMIT),
        (When.BEFORE, Step.COMPLETE),
        (When.AFTER, Step.COMPLETE),
    ],
)
def test_a_driver_that_dies_at_any_step_loses_and_repeats_nothing(
    query: Query, when: When, step: Step
) -> None:
    query.run(query.start(), 0, [[0]])
    query.die(when, step, 1, [[1], [2]])
    coordinator = query.start()
    query.run(coordinator, 1, [[1], [2]])
    query.run(coordinator, 2, [[3]])
    assert query.rows() == [0, 1, 2, 3]
    assert query.open() == []
    assert [decision.epoch for decision in query.decisions()] == [0, 1, 2]


def test_commits_run_in_parallel_and_all_of_them(query: Query) -> None:
    coordinator = query.start()
    coordinator.parallel = in_threads
    coordinator.__post_init__()
    query.run(coordinator, 0, [[partition] for partition in range(100)])
    assert len(query.rows()) == 100


def test_statistics_of_an_epoch_are_kept_in_its_record(query: Query) -> None:
    coordinator = query.start()
    query.run(coordinator, 0, [[1, 2, 3], [4]])
    query.run(coordinator, 1, [[5]])
    first, second = query.decisions()
    assert first.statistics["rows"] == 4
    assert first.statistics["bytes"] == 32
    assert first.statistics["transactions"] == first.statistics["tasks"] == 2
    seconds = first.statistics["seconds"]
    assert isinstance(seconds, dict)
    assert set(seconds) == {"recover", "begin", "write", "preCommit"}
    previous = second.statistics["previous"]
    assert isinstance(previous, dict)
    assert set(previous) == {"epoch", "decide", "commit", "complete"}
    assert previous["epoch"] == 0


# Several pending epochs


def test_several_pending_epochs_are_finished_in_order_and_none_is_skipped(query: Query) -> None:
    expected = decide_by_hand(query, 3)
    order: list[Handle] = []
    query.sink.before_commit = order.append
    listener = NotingListener()
    assignment = query.plan(query.start([listener]), 2)
    assert order == expected
    assert listener.calls == [("complete", 0), ("complete", 1), ("complete", 2)]
    assert query.rows() == [0, 1, 2]
    assert assignment.completed_through == 2
    assert all(vote.skipped for vote in query.write(assignment, 2, [[2]]))


def test_a_newer_completed_epoch_does_not_hide_an_older_pending_one(query: Query) -> None:
    first, second, third = decide_by_hand(query, 3)
    query.sink.commit(third)
    query.plan(query.start(), 2)
    assert [query.state(handle) for handle in (first, second)] == [Verdict.COMMITTED] * 2
    assert query.rows() == [0, 1, 2]


def test_pending_epochs_stay_known_when_their_recovery_dies_between_them(query: Query) -> None:
    decide_by_hand(query, 3)
    with pytest.raises(Killed):
        query.start(trace=_kill_at(When.DURING, Step.RECOVER, epoch=1)).plan()
    assert query.rows() == [0]
    query.run(query.start(), 2, [[2]])
    query.run(query.start(), 3, [[3]])
    assert query.rows() == [0, 1, 2, 3]


def test_an_older_pending_epoch_that_the_store_gave_up_stops_the_query(query: Query) -> None:
    first, _, _ = decide_by_hand(query, 3)
    query.server.expire([first.name])
    with pytest.raises(LossError, match="will not replay epoch 0") as stopped:
        query.start().plan()
    assert str(first) in str(stopped.value)
    assert "assent settle CHECKPOINT HANDLE" in str(stopped.value)
    with pytest.raises(LossError):  # and stays stopped
        query.start().plan()


def test_an_older_pending_epoch_that_an_operator_settled_is_passed_over(query: Query) -> None:
    first, _, _ = decide_by_hand(query, 3)
    query.server.expire([first.name])
    with pytest.raises(LossError):
        query.start().plan()
    settle(query.ledger, query.checkpoint, first, "lost", "the disk burned")
    query.run(query.start(), 2, [[2]])
    assert query.rows() == [1, 2]


@pytest.mark.parametrize(
    ("outcome", "rows"), [("committed", [1]), ("lost", [1]), ("aborted", [1, 2])]
)
def test_what_an_operator_settled_is_not_asked_of_the_store_again(
    query: Query, outcome: str, rows: list[int]
) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    forgotten = Handle("memory", query.open()[1])
    query.server.expire([forgotten.name])
    query.sink.forgotten.add(forgotten.name)
    with pytest.raises(InDoubtError):
        query.start().plan()
    settle(query.ledger, query.checkpoint, forgotten, outcome, "looked into the store")
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == rows
    query.run(query.start(), 1, [[3]])
    assert query.rows() == [*rows, 3]


# User context


def test_user_context_is_saved_with_the_epoch_and_handed_back_on_recovery() -> None:
    query = Query(targets=("a", "b"))
    query.sinks[0].context = {"topic": "first", "offset": 7}
    query.sinks[1].context = "second"
    query.die(When.AFTER, Step.DECIDE, 0, [[1]])
    for sink in query.sinks:
        sink.context = "of another epoch"
    query.plan(query.start(), 0)
    [first], [second] = query.sinks[0].recovered, query.sinks[1].recovered
    assert (first[0], first[2]) == ("commit", {"topic": "first", "offset": 7})
    assert (second[0], second[2]) == ("commit", "second")


def test_user_context_is_handed_to_the_abort_of_what_died(query: Query) -> None:
    query.sink.context = {"newest": 0}
    query.run(query.start(), 0, [[0]])
    query.die(When.BEFORE, Step.DECIDE, 1, [[1]])
    query.plan(query.start(), 1)
    [(what, _, context)] = query.sink.recovered
    assert (what, context) == ("abort", {"newest": 0})


def test_an_epoch_that_commits_at_once_does_not_recover(query: Query) -> None:
    query.run(query.start(), 0, [[0]])
    assert query.sink.recovered == []


# Listeners and snapshots


def test_listeners_hear_of_completed_and_aborted_epochs(query: Query) -> None:
    listener = NotingListener()
    coordinator = query.start([listener])
    query.run(coordinator, 0, [[0]])
    coordinator.abort(query.write(query.plan(coordinator, 1), 1, [[1]]), 1)
    query.run(coordinator, 1, [[1]])
    assert listener.calls == [("complete", 0), ("aborted", 1), ("complete", 1)]


def test_listeners_run_only_when_every_handle_is_committed(query: Query) -> None:
    class Looks(NotingListener):
        def on_epoch_complete(self, epoch: int) -> None:
            super().on_epoch_complete(epoch)
            assert query.open() == []
            assert len(query.rows()) == 2

    listener = Looks()
    query.run(query.start([listener]), 0, [[1], [2]])
    assert listener.calls == [("complete", 0)]


def test_completion_is_repeated_after_a_crash_before_sparks_commit_log(query: Query) -> None:
    first = NotingListener()
    query.run_up_to_commit_log(query.start([first]), 0, [[0]])
    second = NotingListener()
    coordinator = query.start([second])
    query.run(coordinator, 0, [[0]])
    assert second.calls == [("restore", 0), ("complete", 0)]
    query.run(coordinator, 1, [[1]])
    assert second.calls[2:] == [("complete", 1)]
    assert query.rows() == [0, 1]


def test_a_listener_that_fails_stops_the_query_and_hears_of_the_epoch_again(query: Query) -> None:
    class Fails(NotingListener):
        def on_epoch_complete(self, epoch: int) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        query.run(query.start([Fails()]), 0, [[0]])
    listener = NotingListener()
    query.run(query.start([listener]), 0, [[0]])
    assert listener.calls == [("complete", 0)]
    assert query.rows() == [0]


def test_snapshots_are_restored_once_per_run_before_anything_else(query: Query) -> None:
    first = query.start([NotingListener()])
    for epoch in range(3):
        query.run(first, epoch, [[epoch]])
    listener = NotingListener()
    coordinator = query.start([listener])
    for epoch in range(3, 5):
        query.run(coordinator, epoch, [[epoch]])
    assert listener.calls == [("restore", 2), ("complete", 3), ("complete", 4)]
    assert listener.count == 5


def test_snapshots_are_restored_on_the_committing_side_too(query: Query) -> None:
    planner = query.start()
    query.run(query.start([NotingListener()]), 0, [[0]])
    votes = query.write(query.plan(planner, 1), 1, [[1]])
    listener = NotingListener()
    query.start([listener]).commit(votes, 1)
    assert listener.calls == [("restore", 0), ("complete", 1)]
    assert query.decisions()[1].snapshots == {listener.name: {"count": 2}}


def test_a_snapshot_is_atomic_with_its_decision(query: Query) -> None:
    class Dies(NotingListener):
        def snapshot(self, epoch: int) -> Any:
            super().snapshot(epoch)
            if epoch == 1:
                raise Killed
            return {"count": self.count}

    coordinator = query.start([Dies()])
    query.run(coordinator, 0, [[0]])
    with pytest.raises(Killed):
        query.run(coordinator, 1, [[1]])
    listener = Dies()
    query.plan(query.start([listener]), 1)
    assert (listener.count, query.rows()) == (1, [0])


# Timeouts


@pytest.mark.parametrize(("age", "warned"), [(79.0, False), (80.0, True), (200.0, True)])
def test_a_warning_when_a_transactions_age_passes_the_ratio_of_its_timeout(
    age: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(timeout=100.0)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    query.clock.now += age
    coordinator.commit(votes, 0)
    [handle] = handles(votes)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert bool(warnings) is warned
    assert all(str(handle) in record.getMessage() for record in warnings)


def test_the_ratio_of_the_warning_is_an_option(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(timeout=100.0, policy=Policy(timeout_warning_ratio=0.2))
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    query.clock.now += 20
    coordinator.commit(votes, 0)
    assert "is 20 s old; the store gives it up after 100 s" in caplog.text


def test_rewrite_of_the_torn_partitions_and_no_others(query: Query) -> None:
    tear(query, 0, [[1], [2], [3]], 1)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    assert query.rows() == [1, 3]
    votes = query.write(assignment, 0, [[1], [2], [3]])
    assert [vote.skipped for vote in votes] == [True, False, True]
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    assert query.rows() == [1, 2, 3]
    assert query.open() == []
    query.run(coordinator, 1, [[4]])
    assert query.rows() == [1, 2, 3, 4]


def test_rewrite_within_a_running_query(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    query.server.expire([handles(votes)[0].name])
    with pytest.raises(TornEpochError, match="Nothing is lost") as torn:
        coordinator.commit(votes, 0)
    assert str(handles(votes)[0]) in str(torn.value)
    assert str(handles(votes)[1]) not in str(torn.value)
    coordinator.abort(votes, 0)  # as Spark does
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_rewrite_of_a_whole_epoch_with_another_number_of_tasks_and_other_rows(
    query: Query,
) -> None:
    tear(query, 0, [[1], [2]], 0, 1)
    query.run(query.start(), 0, [[1, 5], [2], [3]])
    assert query.rows() == [1, 2, 3, 5]
    [amendment] = query.amendments()
    assert amendment.whole
    assert amendment.tasks == 3
    query.run(query.start(), 1, [[4]])
    assert query.rows() == [1, 2, 3, 4, 5]


def test_rewrite_of_a_whole_epoch_that_is_now_empty(query: Query) -> None:
    tear(query, 0, [[1]], 0)
    query.run(query.start(), 0, [[], []])
    query.run(query.start(), 1, [[2]])
    assert query.rows() == [2]


def test_rewrite_of_a_rewrite_that_is_torn_again(query: Query) -> None:
    rows = [[1], [2], [3]]
    tear(query, 0, rows, 0, 1)
    for _ in range(2):
        coordinator = query.start()
        votes = query.write(query.plan(coordinator, 0), 0, rows)
        query.server.expire(handle.name for handle in handles(votes))
        with pytest.raises(TornEpochError):
            coordinator.commit(votes, 0)
    query.run(query.start(), 0, rows)
    assert query.rows() == [1, 2, 3]
    assert [len(amendment.shares) for amendment in query.amendments()] == [2, 2, 2]


def test_rewrite_of_a_whole_epoch_that_is_torn_in_part_is_matched_with_the_rewrite(
    query: Query,
) -> None:
    tear(query, 0, [[1], [2]], 0, 1)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2], [3]])
    query.server.expire([handles(votes)[2].name])
    with pytest.raises(TornEpochError):
        coordinator.commit(votes, 0)
    query.run(query.start(), 0, [[1], [2], [3]])
    assert query.rows() == [1, 2, 3]


@pytest.mark.parametrize("replay", list(permutations([[1], [2], [3, 3], []])))
@pytest.mark.parametrize("torn", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_rewrite_does_not_mind_which_task_gets_what(
    query: Query, torn: tuple[int, ...], replay: Rows
) -> None:
    """Spark's Kafka source lists partitions in another order when an epoch is replayed."""
    rows = [[1], [2], [3, 3], []]
    tear(query, 0, rows, *torn)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, replay)
    wanted = [rows[partition] for partition in torn]
    assert [vote.skipped for vote in votes] == [part not in wanted for part in replay]
    coordinator.commit(votes, 0)
    assert query.rows() == [1, 2, 3, 3]
    assert query.open() == []
    [amendment] = query.amendments()
    assert sorted(share.partition for share in amendment.shares) == list(torn)


def test_rewrite_does_not_mind_a_task_more_or_less_that_has_no_rows(query: Query) -> None:
    tear(query, 0, [[1], [], [2]], 2)
    query.run(query.start(), 0, [[2], [1]])
    assert query.rows() == [1, 2]
    tear(query, 1, [[3], [4]], 0)
    query.run(query.start(), 1, [[], [4], [3], []])
    assert query.rows() == [1, 2, 3, 4]


def test_of_two_shares_alike_as_many_are_rewritten_as_are_torn(query: Query) -> None:
    tear(query, 0, [[1], [1], [1], [2]], 1)
    assert_replayed(query, 0, [[1], [2], [1], [1]])
    assert query.rows() == [1, 1, 1, 2]
    assert query.open() == []


def assert_replayed(query: Query, epoch: int, rows: Rows) -> None:
    """Nothing is open any more when commit has returned, whatever is swept later."""
    coordinator = query.start()
    coordinator.commit(query.write(query.plan(coordinator, epoch), epoch, rows), epoch)
    query.checkpoint.committed.add(epoch)


def test_a_task_without_rows_is_rewritten_where_it_replaces_all_others(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(query.sink), "replaces", True)
    tear(query, 0, [[], [1]], 0)
    query.run(query.start(), 0, [[1], []])
    assert query.rows() == [1]
    [share] = query.amendments()[0].shares
    assert (share.partition, share.prepared[0].rows) == (0, 0)
    assert query.open() == []


def test_rewrite_does_not_mind_the_order_of_rows(query: Query) -> None:
    tear(query, 0, [[1], [2, 3, 4]], 1)
    query.run(query.start(), 0, [[1], [4, 3, 2]])
    assert query.rows() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("replay", "why"),
    [
        pytest.param([[1], [5]], r"what partitions \[1\] .* what tasks \[1\]", id="another row"),
        pytest.param([[1], []], r"what partitions \[1\] .* what tasks \[\]", id="no row"),
        pytest.param([[1], [2, 2]], r"what partitions \[1\] .* what tasks \[1\]", id="row twice"),
        pytest.param([[1], [2], [3]], r"what partitions \[\] .* what tasks \[2\]", id="more"),
        pytest.param([[1], [2], [1]], r"what partitions \[\] .* what tasks \[", id="one twice"),
        pytest.param([[1, 2]], r"its 1 tasks has what partitions \[0, 1\] of 2 had", id="fewer"),
        pytest.param([[2], [5]], r"what partitions \[0\] .* what tasks \[1\]", id="committed"),
    ],
)
def test_a_replay_of_a_torn_epoch_with_other_content_is_refused(
    query: Query, replay: Rows, why: str
) -> None:
    tear(query, 0, [[1], [2]], 1)
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, replay)
    with pytest.raises(ReplayError, match=why) as refused:
        coordinator.commit(votes, 0)
    assert "committed: [(0, 0)]; not committed: [(1, 0)]" in str(refused.value)
    assert query.rows() == [1]
    assert query.open() == []
    # A replay that is right is still taken.
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_a_vote_with_the_right_rows_that_holds_nothing_replaces_nothing(query: Query) -> None:
    tear(query, 0, [[1], [2]], 1)
    coordinator = query.start()
    one, other = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    empty = replace(other, share=replace(other.share, prepared=()))
    with pytest.raises(ReplayError, match=r"what partitions \[1\]"):
        coordinator.commit([one, empty], 0)


def test_fail_stops_at_every_start_until_the_choice_is_another() -> None:
    query = Query(policy=Policy(on_timeout=OnTimeout.FAIL))
    tear(query, 0, [[1], [2]], 1)
    for _ in range(2):
        with pytest.raises(LossError, match="onTimeout is 'fail'") as stopped:
            query.start().plan()
        assert "(partition 1, 1 rows)" in str(stopped.value)
        assert "(partition 0" not in str(stopped.value)
    assert query.amendments() == []
    query.policy = Policy(on_timeout=OnTimeout.REWRITE)
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_ignore_logs_the_loss_records_it_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(timeout=60.0, policy=Policy(on_timeout=OnTimeout.IGNORE))
    tear(query, 0, [[1], [2]], 1)
    query.clock.now += 60
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    assert "DATA LOSS in epoch 0" in caplog.text
    assert "(partition 1, 1 rows)" in caplog.text
    [amendment] = query.amendments()
    assert amendment.settlements == (
        Settlement(1, 0, "lost", "given up after the store's timeout"),
    )
    # It has the place that the next decision would have had, and that one the next.
    assert amendment.key == RecordKey(1, 1)
    assert assignment.key == RecordKey(2, 1)
    coordinator.commit(query.write(assignment, 0, [[1], [2]]), 0)
    query.checkpoint.committed.add(0)
    query.run(coordinator, 1, [[3]])
    assert query.decisions()[1].key == RecordKey(2, 1)
    query.run(query.start(), 2, [[4]])
    assert query.rows() == [1, 3, 4]
    assert query.open() == []
    assert caplog.text.count("DATA LOSS") == 1


def test_ignore_while_the_query_runs(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(timeout=60.0, policy=Policy(on_timeout=OnTimeout.IGNORE))
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    query.clock.now += 60
    query.server.expire([handles(votes)[0].name])
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    query.run(coordinator, 1, [[3]])
    assert query.rows() == [2, 3]
    assert [decision.key for decision in query.decisions()] == [RecordKey(0, 0), RecordKey(2, 0)]
    assert "DATA LOSS in epoch 0" in caplog.text


def test_ignore_still_rewrites_what_was_given_up_before_its_timeout() -> None:
    query = Query(timeout=60.0, policy=Policy(on_timeout=OnTimeout.IGNORE))
    tear(query, 0, [[1], [2]], 1)
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_ignore_of_one_partition_and_rewrite_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """One was given up after its timeout, the other by somebody's hand: one settlement in all."""
    query = Query(timeout=60.0, policy=Policy(on_timeout=OnTimeout.IGNORE))
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    early = query.task(assignment, 0, 0, [1])
    query.clock.now += 60
    late = [query.task(assignment, 0, 1, [2]), query.task(assignment, 0, 2, [3])]
    query.server.expire([*(handle.name for handle in handles([early, late[0]]))])
    with pytest.raises(TornEpochError):
        coordinator.commit([early, *late], 0)
    query.run(query.start(), 0, [[1], [2], [3]])
    assert query.rows() == [2, 3]
    settlements = [s for amendment in query.amendments() for s in amendment.settlements]
    assert [settlement.partition for settlement in settlements] == [0]
    query.run(query.start(), 1, [[4]])
    assert query.rows() == [2, 3, 4]


def test_ignore_of_one_partition_found_by_the_recovery_that_rewrites_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(timeout=60.0, policy=Policy(on_timeout=OnTimeout.IGNORE))
    coordinator = query.start(trace=_kill_at(When.AFTER, Step.DECIDE))
    assignment = query.plan(coordinator, 0)
    early = query.task(assignment, 0, 0, [1])
    query.clock.now += 60
    late = [query.task(assignment, 0, 1, [2]), query.task(assignment, 0, 2, [3])]
    with pytest.raises(Killed):
        coordinator.commit([early, *late], 0)
    query.server.expire([*(handle.name for handle in handles([early, late[0]]))])
    query.run(query.start(), 0, [[1], [2], [3]])
    assert query.rows() == [2, 3]
    settlements = [s for amendment in query.amendments() for s in amendment.settlements]
    assert [settlement.partition for settlement in settlements] == [0]
    assert caplog.text.count("DATA LOSS") == 1


# Doubt


def test_unknown_stops_and_names_the_handle_and_the_remedy(query: Query) -> None:
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    forgotten, known = query.open()
    query.server.expire([forgotten])
    query.sink.forgotten.add(forgotten)
    with pytest.raises(InDoubtError, match="no longer knows") as doubt:
        query.start().plan()
    assert str(Handle("memory", forgotten)) in str(doubt.value)
    assert known not in str(doubt.value)
    assert query.open() == []  # the other one is committed
    assert "assent settle CHECKPOINT HANDLE committed|aborted|lost" in str(doubt.value)


def test_unknown_is_never_read_as_aborted(query: Query) -> None:
    query.die(When.AFTER, Step.COMMIT, 0, [[1]])
    query.sink.forgotten.update(query.server.transactions)
    query.sink.failing["commit"] = RetriableError("no such transaction")
    with pytest.raises(InDoubtError):
        query.start().plan()
    assert query.amendments() == []


def test_a_commit_is_tried_again_until_the_verdict_is_known(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    calls = 0

    def sometimes(handle: Handle) -> None:
        nonlocal calls
        calls += 1
        if calls < 5:
            raise ConnectionError("try later")

    query.sink.before_commit = sometimes
    coordinator.commit(votes, 0)
    assert calls == 5
    assert query.rows() == [1]


def test_a_commit_whose_answer_was_lost_is_known_by_its_verdict(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    query.sink.failing["commit answered"] = ConnectionError("reset")
    coordinator.commit(votes, 0)
    assert query.rows() == [1]
    assert query.sink.operations.count("commit") == 1


def test_a_commit_that_takes_too_long_is_retriable_and_says_how_long_it_was_tried() -> None:
    query = Query(policy=Policy(commit_timeout=30.0))
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    broken = handles(votes)[1]

    def refuse(handle: Handle) -> None:
        if handle == broken:
            raise ConnectionError("nobody there")

    query.sink.before_commit = refuse
    started = query.clock()
    with pytest.raises(RetriableError, match=r"within commitTimeout \(30 s\)") as late:
        coordinator.commit(votes, 0)
    assert 30 <= query.clock() - started < 35
    assert str(broken) in str(late.value)
    assert "nobody there" in str(late.value)
    assert str(handles(votes)[0]) not in str(late.value)
    query.sink.before_commit = lambda handle: None
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows() == [1, 2]


def test_a_store_that_cannot_be_asked_is_asked_again_and_not_believed_to_have_aborted(
    query: Query,
) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    query.sink.failing["commit"] = ConnectionError("away")
    query.sink.failing["verdict"] = ConnectionError("also away")
    with pytest.raises(RetriableError, match="also away"):
        coordinator.commit(votes, 0)


# Several sinks


def test_several_sinks_share_one_decision() -> None:
    query = Query(targets=("a", "b"))
    query.run(query.start(), 0, [[1], [2]])
    [decision] = query.decisions()
    assert sum(len(share.prepared) for share in decision.shares) == 4
    assert query.rows(0) == query.rows(1) == [1, 2]


@pytest.mark.parametrize("past", range(6))
def test_several_sinks_all_have_the_epoch_after_a_crash_between_their_commits(past: int) -> None:
    query = Query(targets=("a", "b"))
    query.die(When.DURING, Step.COMMIT, 0, [[1], [2]], past=past)
    assert len(query.open()) == max(0, 3 - past)
    query.run(query.start(), 0, [[1], [2]])
    assert query.rows(0) == query.rows(1) == [1, 2]
    assert query.open() == []


@pytest.mark.parametrize(
    ("replay", "written"),
    [
        pytest.param([[1], [2]], [[1], []], id="same order"),
        pytest.param([[2], [1]], [[], [1]], id="turned"),
    ],
)
def test_several_sinks_of_which_one_gave_up_are_rewritten_in_that_one(
    replay: Rows, written: list[list[int]]
) -> None:
    query = Query(targets=("a", "b"))
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.servers[1].expire(query.servers[1].open()[:1])
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, replay)
    assert [[prepared.sink for prepared in vote.share.prepared] for vote in votes] == written
    coordinator.commit(votes, 0)
    assert query.rows(0) == query.rows(1) == [1, 2]


def test_several_sinks_are_torn_as_a_whole_only_if_all_gave_up() -> None:
    query = Query(targets=("a", "b"))
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.servers[0].expire()
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[5], [6]])
    with pytest.raises(ReplayError):
        coordinator.commit(votes, 0)
    assert (query.rows(0), query.rows(1)) == ([], [1, 2])


def test_several_sinks_of_which_one_cannot_prepare_have_nothing() -> None:
    query = Query(targets=("a", "b"))
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    query.sinks[1].failing["pre_commit"] = ConnectionError("no")
    with pytest.raises(ConnectionError):
        query.write(assignment, 0, [[1]])
    coordinator.abort([], 0, assignment)
    assert query.rows(0) == query.rows(1) == []
    assert query.open() == []


# Votes


def test_an_epoch_with_a_lost_vote_is_aborted_as_a_whole(query: Query) -> None:
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    votes = query.write(assignment, 0, [[1], [2], [3]])
    coordinator.abort(votes[:1], 0)  # two of them reached nobody
    assert query.rows() == []
    assert query.open() == []
    assert query.voids() == [assignment.key]
    query.run(coordinator, 0, [[1], [2], [3]])
    assert query.rows() == [1, 2, 3]


def test_an_abort_without_votes_or_assignment_leaves_all_to_the_sweep(query: Query) -> None:
    coordinator = query.start()
    query.write(query.plan(coordinator, 0), 0, [[1]])
    query.start().abort([], 0)
    assert query.voids() == []
    query.run(query.start(), 0, [[1]])
    assert query.open() == []
    assert query.rows() == [1]


def test_an_abort_that_the_store_refuses_is_left_to_the_sweep(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    query.sink.failing["abort"] = ConnectionError("away")
    coordinator.abort(votes, 0)
    assert "left to the next sweep" in caplog.text
    query.sink.failing.clear()
    query.plan(coordinator, 0)
    assert query.open() == []


def _of_another_epoch(votes: list[Vote]) -> list[Vote]:
    return [votes[0], replace(votes[1], epoch=7)]


def _of_another_plan(votes: list[Vote]) -> list[Vote]:
    other = replace(votes[1].assignment, key=RecordKey(9, 9))
    return [votes[0], replace(votes[1], assignment=other)]


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda votes: [], "no votes at all"),
        (lambda votes: [votes[0], votes[0]], "two votes of one partition"),
        (lambda votes: [votes[0], replace(votes[1], skipped=True)], "tasks skipped epoch 0"),
        (_of_another_epoch, "different plans"),
        (_of_another_plan, "different plans"),
    ],
)
def test_votes_that_do_not_belong_together_decide_nothing(
    query: Query, forge: Any, why: str
) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    with pytest.raises(ReplayError, match=why):
        coordinator.commit(forge(votes), 0)
    assert query.records() == []
    assert query.rows() == []


def test_an_epoch_without_a_row_is_decided_like_any_other(query: Query) -> None:
    coordinator = query.start()
    query.run(coordinator, 0, [[], []])
    query.run(coordinator, 1, [[1]])
    assert [(decision.epoch, len(decision.shares)) for decision in query.decisions()] == [
        (0, 0),
        (1, 1),
    ]
    assert query.server.transactions.keys() == {
        prepared.handle.name
        for decision in query.decisions()
        for share in decision.shares
        for prepared in share.prepared
    }


def test_a_ledger_that_cannot_be_written_is_retriable_and_the_next_start_goes_on(
    query: Query,
) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1]])
    write = coordinator.ledger.write

    def fail_once(record: Any) -> Any:
        if not isinstance(record, Void):
            raise OSError(28, "No space left on device")
        return write(record)

    coordinator.ledger.write = fail_once  # type: ignore[method-assign]
    with pytest.raises(RetriableError, match="No space left on device"):
        coordinator.commit(votes, 0)
    assert query.open() == []
    del coordinator.ledger.write
    query.run(coordinator, 0, [[1]])
    assert query.rows() == [1]


def test_a_coordinator_serves_a_checkpoint_that_was_deleted_and_made_anew() -> None:
    """Spark's planning process outlives a query: the folder may hold another ledger by now."""
    store = MemoryStore()
    query = Query(store)
    coordinator = query.start()
    query.run(coordinator, 0, [[1]])
    query.run(coordinator, 1, [[2]])
    store.files.clear()
    query.checkpoint.offsets.clear()
    query.checkpoint.committed.clear()
    query.run(coordinator, 0, [[3]])
    assert query.rows() == [1, 2, 3]
    assert [decision.epoch for decision in query.decisions()] == [0]


def _kill_at(when: When, step: Step, epoch: int | None = None) -> Trace:
    def trace(moment: Moment) -> None:
        if (moment.when, moment.step) == (when, step) and epoch in (None, moment.epoch):
            raise Killed(str(moment))

    return trace


def test_the_docstring_numbers_the_steps() -> None:
    text = Coordinator.__doc__ or ""
    for number, word in enumerate(
        ["Recover", "Begin", "Write", "Pre-commit", "Decide", "Commit", "Complete", "Spark"]
    ):
        assert f"{number}. {word}" in text


# What readers see


def test_an_epoch_is_confirmed_once(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    expected = [(handle, Verdict.COMMITTED) for handle in handles(votes)]
    assert query.sink.confirmed == expected
    query.run(coordinator, 1, [[3]])
    assert query.sink.confirmed[:-1] == expected


def test_a_new_process_confirms_what_it_has_not_committed(query: Query) -> None:
    votes = query.write(query.plan(coordinator := query.start(), 0), 0, [[1]])
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    query.sink.confirmed.clear()
    query.run(query.start(), 1, [[2]])
    assert query.sink.confirmed[0] == (handles(votes)[0], Verdict.COMMITTED)


def test_nothing_is_decided_before_readers_see_the_epoch_before(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = query.start()
    query.sink.failing["confirm"] = RetriableError("no leader")
    query.run(coordinator, 0, [[1]])  # it is committed, and Spark may go on
    assert "it is not sure that readers see it (RetriableError: no leader)" in caplog.text
    with pytest.raises(RetriableError, match="no leader"):
        query.run(coordinator, 1, [[2]])
    assert [decision.epoch for decision in query.decisions()] == [0]
    del query.sink.failing["confirm"]
    query.run(query.start(), 1, [[2]])
    assert query.rows() == [1, 2]
    ends = [end for _, end in query.sink.confirmed]
    assert ends.count(Verdict.COMMITTED) == 2


def run_with_a_loser(query: Query, coordinator: Coordinator) -> Handle:
    """Epoch 0, of which two attempts at a task were written; gives the one that was swept."""
    assignment = query.plan(coordinator, 0)
    votes = query.write(assignment, 0, [[1]])
    (loser,) = handles(query.write(assignment, 0, [[1]], attempt=1))
    coordinator.commit(votes, 0)
    query.checkpoint.committed.add(0)
    assert query.sink.verdict(loser) is Verdict.ABORTED
    return loser


def test_what_is_swept_is_confirmed_as_aborted_also_later(query: Query) -> None:
    coordinator = query.start()
    query.sink.failing["confirm"] = RetriableError("no leader")
    loser = run_with_a_loser(query, coordinator)
    assert query.sink.confirmed == []
    del query.sink.failing["confirm"]
    query.run(coordinator, 1, [[2]])
    assert (loser, Verdict.ABORTED) in query.sink.confirmed


def test_an_abort_whose_answer_was_lost_is_confirmed_too(query: Query) -> None:
    coordinator = query.start()
    query.sink.failing["abort answered"] = RetriableError("no answer")
    loser = run_with_a_loser(query, coordinator)
    del query.sink.failing["abort answered"]
    query.run(coordinator, 1, [[2]])
    assert query.sink.confirmed.count((loser, Verdict.ABORTED)) == 1


def test_nothing_is_decided_before_readers_know_what_is_aborted(query: Query) -> None:
    coordinator = query.start()
    confirm = query.sink.confirm

    def refuse(handles: Sequence[Handle], end: Verdict) -> None:
        if end is Verdict.ABORTED:
            raise RetriableError("no leader")
        confirm(handles, end)

    query.sink.confirm = refuse  # type: ignore[method-assign]
    run_with_a_loser(query, coordinator)
    with pytest.raises(RetriableError, match="no leader"):
        query.run(coordinator, 1, [[2]])
    assert [decision.epoch for decision in query.decisions()] == [0]


def test_what_the_store_gave_up_is_never_confirmed_as_committed(query: Query) -> None:
    tear(query, 0, [[1], [2]], 1)
    given_up = query.decisions()[-1].shares[1].prepared[0].handle
    query.run(query.start(), 0, [[1], [2]])
    query.run(query.start(), 1, [[3]])
    assert query.rows() == [1, 2, 3]
    assert [end for handle, end in query.sink.confirmed if handle == given_up] == [Verdict.ABORTED]


def test_votes_of_an_epoch_that_failed_are_confirmed_as_aborted(query: Query) -> None:
    coordinator = query.start()
    votes = query.write(query.plan(coordinator, 0), 0, [[1], [2]])
    coordinator.abort(votes, 0)
    assert query.sink.confirmed == [(handle, Verdict.ABORTED) for handle in handles(votes)]
