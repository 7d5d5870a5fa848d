"""The files sink on a real disk: after each phase, what is pending and what is visible."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assent.protocol.errors import (
    ConfigurationError,
    InDoubtError,
    RetriableError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.verdict import Verdict
from assent.sinks.files import FilesSink
from tests.files_kit import (
    IDENTITY,
    await_closed,
    left,
    make_sink,
    name,
    numbers,
    only_seal,
    pending,
    settle,
    stage,
    visible,
)


@pytest.fixture(params=[(), ("g",)], ids=["plain", "partitioned"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FilesSink]:
    yield make_sink(tmp_path / "out", request.param)
    await_closed(tmp_path)


def test_each_phase_shows_and_holds_what_it_should(sink: FilesSink) -> None:
    transaction = sink.begin(name(0), 7)
    sink.write(transaction, numbers(0))
    assert (visible(sink), len(pending(sink))) == ([], 1)

    first = sink.pre_commit(transaction)
    second = stage(sink, 7, 1, numbers(5))
    assert (visible(sink), set(pending(sink))) == ([], {first, second})
    assert [sink.verdict(handle) for handle in (first, second)] == [Verdict.PENDING] * 2

    sink.commit(first)
    assert (visible(sink), pending(sink)) == ([], [second])
    assert sink.verdict(first) is Verdict.COMMITTED
    assert sink.verdict(second) is Verdict.PENDING

    sink.commit(second)
    assert (visible(sink), pending(sink)) == ([], [])

    sink.publish(7, [first, second])
    assert (visible(sink), pending(sink)) == (list(range(10)), [])
    assert [sink.verdict(handle) for handle in (first, second)] == [Verdict.COMMITTED] * 2
    assert os.listdir(sink.output) == ["epoch=3f2a9c0d-000007"]
    assert left(sink) == only_seal(7)


def test_commit_and_publish_may_be_repeated(sink: FilesSink) -> None:
    handles = [stage(sink, 0, partition) for partition in range(2)]
    settle(sink, 0, handles)
    once = visible(sink)
    settle(sink, 0, handles)
    assert visible(sink) == once
    assert left(sink) == only_seal(0)


def test_seals_do_not_pile_up(sink: FilesSink) -> None:
    for epoch in range(12):
        settle(sink, epoch, [stage(sink, epoch)])
    assert left(sink) == only_seal(11)
    assert len(os.listdir(sink.output)) == 12


def test_an_older_epoch_that_is_asked_for_again_is_found_in_the_output(sink: FilesSink) -> None:
    old = [stage(sink, 0)]
    settle(sink, 0, old)
    settle(sink, 1, [stage(sink, 1)])
    settle(sink, 0, old)
    assert len(os.listdir(sink.output)) == 2
    assert left(sink) == only_seal(1)


def test_an_older_epoch_that_nobody_remembers_is_unknown(sink: FilesSink, tmp_path: Path) -> None:
    old = [stage(sink, 0)]
    settle(sink, 0, old)
    settle(sink, 1, [stage(sink, 1)])
    os.rename(sink.output / "epoch=3f2a9c0d-000000", tmp_path / "taken")
    assert sink.verdict(old[0]) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError, match="settle"):
        sink.commit(old[0])
    with pytest.raises(InDoubtError, match="settle"):
        sink.publish(0, old)
    assert len(os.listdir(sink.output)) == 1


def test_a_consumer_may_move_a_published_folder_away(sink: FilesSink, tmp_path: Path) -> None:
    handles = [stage(sink, 3, partition) for partition in range(2)]
    settle(sink, 3, handles)
    os.rename(sink.output / "epoch=3f2a9c0d-000003", tmp_path / "taken")
    assert [sink.verdict(handle) for handle in handles] == [Verdict.COMMITTED] * 2
    settle(sink, 3, handles)
    assert os.listdir(sink.output) == []
    assert left(sink) == only_seal(3)


def test_a_loser_of_a_published_epoch_is_aborted_not_committed(sink: FilesSink) -> None:
    winner, loser = stage(sink, 0), stage(sink, 0, batch=numbers(1000))
    settle(sink, 0, [winner])
    assert sink.verdict(loser) is Verdict.PENDING
    sink.abort(loser)
    assert sink.verdict(loser) is Verdict.ABORTED
    assert 1000 not in visible(sink)
    assert left(sink) == only_seal(0)


def test_abort_removes_the_open_transaction_alone(sink: FilesSink) -> None:
    published = stage(sink, 0)
    settle(sink, 0, [published])
    gathered, opened = stage(sink, 1, 0), stage(sink, 1, 1)
    sink.commit(gathered)
    before = visible(sink)
    for handle in (published, gathered, opened, opened):
        sink.abort(handle)
    assert (visible(sink), pending(sink)) == (before, [])
    assert sink.verdict(published) is Verdict.COMMITTED
    assert sink.verdict(gathered) is Verdict.COMMITTED
    assert sink.verdict(opened) is Verdict.ABORTED
    sink.publish(1, [gathered])
    assert left(sink) == only_seal(1)


def test_abort_of_what_pending_lists(sink: FilesSink) -> None:
    transaction = sink.begin(name(4, place=9), 9)
    sink.write(transaction, numbers(0))
    (found,) = sink.pending(IDENTITY)
    assert (found.term, found.place) == (1, 9)
    assert found.started_at == pytest.approx(time.time(), abs=60)
    assert sink.verdict(found.handle) is Verdict.PENDING
    sink.abort(found.handle)
    assert pending(sink) == []
    assert sink.verdict(found.handle) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError, match="the handle that the ledger holds"):
        sink.commit(found.handle)
    sink.discard(transaction)


def test_a_task_whose_transaction_was_aborted_cannot_vote(sink: FilesSink) -> None:
    transaction = sink.begin(name(), 0)
    sink.write(transaction, numbers(0))
    (found,) = pending(sink)
    sink.abort(found)
    with pytest.raises(RetriableError, match=str(transaction.name)):
        sink.pre_commit(transaction)
    assert pending(sink) == []


def test_discard_leaves_nothing(sink: FilesSink) -> None:
    transaction = sink.begin(name(), 0)
    sink.write(transaction, numbers(0))
    sink.discard(transaction)
    assert pending(sink) == []
    assert left(sink) == [IDENTITY]


def test_publishing_nothing_does_nothing(sink: FilesSink) -> None:
    sink.publish(0, [])
    assert (os.listdir(sink.output), left(sink)) == ([], [])


def test_a_transaction_without_rows_is_committed_without_a_folder(sink: FilesSink) -> None:
    transaction = sink.begin(name(), 0)
    sink.write(transaction, numbers(0, 0))
    handle = sink.pre_commit(transaction)
    assert sink.verdict(handle) is Verdict.PENDING
    settle(sink, 0, [handle])
    assert sink.verdict(handle) is Verdict.COMMITTED
    assert (os.listdir(sink.output), left(sink)) == ([], [IDENTITY])


def test_queries_share_an_output(sink: FilesSink) -> None:
    for identity in ("aaaaaaaa1", "bbbbbbbb1"):
        transaction = sink.begin(name(identity=identity), 0)
        sink.write(transaction, numbers(0))
        settle(sink, 0, [sink.pre_commit(transaction)])
    assert sorted(os.listdir(sink.output)) == ["epoch=aaaaaaaa-000000", "epoch=bbbbbbbb-000000"]


def test_a_handle_travels_as_text_and_the_sink_as_pickle(sink: FilesSink) -> None:
    handle = Handle.parse(str(stage(sink, 0)))
    elsewhere = pickle.loads(pickle.dumps(sink))
    settle(elsewhere, 0, [handle])
    assert visible(sink) == [0, 1, 2, 3, 4]


def test_a_handle_of_another_sink_is_refused(sink: FilesSink, tmp_path: Path) -> None:
    handle = stage(sink, 0)
    other = FilesSink(tmp_path / "other")
    for act in (other.commit, other.abort, other.verdict):
        with pytest.raises(ConfigurationError, match="another sink"):
            act(handle)
    with pytest.raises(ConfigurationError, match="another sink"):
        sink.commit(Handle("kafka", handle.name, handle.details))
    assert pending(sink) == [handle]


# The weaker guarantees, where a task does everything by itself.


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_a_task_alone_leaves_nothing_behind(sink: FilesSink, guarantee: Guarantee) -> None:
    sink.guarantee = guarantee
    for identity in ("aaaaaaaa1", "bbbbbbbb1"):
        transaction = sink.begin(name(identity=identity), 0)
        sink.write(transaction, numbers(0))
        handle = sink.pre_commit(transaction)
        sink.commit(handle)
        sink.publish(0, [handle])
        assert sink.verdict(handle) is Verdict.COMMITTED
        sink.publish(0, [handle])
    assert visible(sink) == sorted([0, 1, 2, 3, 4] * 2)
    assert left(sink) == []


def test_a_task_alone_that_fails_leaves_nothing_behind(sink: FilesSink) -> None:
    sink.guarantee = Guarantee.AT_LEAST_ONCE
    transaction = sink.begin(name(identity="aaaaaaaa1"), 0)
    sink.write(transaction, numbers(0))
    sink.discard(transaction)
    assert (visible(sink), left(sink)) == ([], [])


def test_what_a_killed_task_left_is_removed_after_a_day(sink: FilesSink) -> None:
    kept = stage(sink, 0)
    sink.guarantee = Guarantee.AT_LEAST_ONCE
    for identity, age in (("aaaaaaaa1", 25), ("bbbbbbbb1", 1)):
        sink.begin(name(identity=identity), 0)
        then = time.time() - age * 3600
        os.utime(sink.staging / f"attempt-{identity}", (then, then))
    os.utime(sink.staging / IDENTITY, (0, 0))
    sink.check(numbers(0).schema)
    assert sorted(os.listdir(sink.staging)) == [IDENTITY, "attempt-bbbbbbbb1"]
    sink.guarantee = Guarantee.EXACTLY_ONCE
    assert pending(sink) == [kept]


@pytest.mark.parametrize(
    ("guarantee", "flushes"),
    [(Guarantee.EXACTLY_ONCE, True), (Guarantee.AT_LEAST_ONCE, True), (Guarantee.NONE, False)],
)
def test_only_none_does_not_flush(
    sink: FilesSink, guarantee: Guarantee, flushes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    sink.guarantee = guarantee
    handle = stage(sink, 0)
    if flushes:
        staged = {str(file) for file in sink.staging.rglob("*.parquet")}
        assert staged <= set(flushed)
        assert {str(Path(file).parent) for file in staged} <= set(flushed)
        assert str(sink.staging.parent) in flushed
    sink.commit(handle)
    if flushes:
        gathered = {str(path.parent) for path in sink.staging.rglob("ready/**/*.parquet")}
        assert gathered
        assert gathered <= set(flushed)
    sink.publish(0, [handle])
    if flushes:
        assert str(sink.output) in flushed[-3:]
    else:
        assert flushed == []
