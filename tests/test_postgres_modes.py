"""Append, upsert and overwrite, prepared and staged; keys, locks and attempts that meet."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.handle import Handle
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks import postgres_copy
from assent.testing.postgres import Postgres
from tests.postgres_stage import PostgresStage
from tests.sql_query import SqlQuery, batch

pytestmark = pytest.mark.postgres

KEYED = "id bigint PRIMARY KEY, page text"
MODES = ["prepared", "staged"]


def changes(*rows: tuple[int, str | None, int, bool | None]) -> pa.RecordBatch:
    """Key, page, order and whether the key is deleted."""
    keys, pages, orders, gone = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch(
        {
            "Id": pa.array(keys, pa.int64()),
            "page": pa.array(pages, pa.string()),
            "seq": pa.array(orders, pa.int32()),
            "gone": pa.array(gone, pa.bool_()),
        }
    )


def prepare(
    stage: PostgresStage, rows: pa.RecordBatch, partition: int = 0, place: int = 0
) -> Handle:
    sink = stage.sink()
    transaction = sink.begin(stage.name(place, partition), 0)
    try:
        sink.write(transaction, rows)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.discard(transaction)
        raise


def complete(sink: Sink[Any], *handles: Handle) -> None:
    for handle in handles:
        sink.commit(handle)
    sink.publish(0, handles)


def is_clean(stage: PostgresStage) -> bool:
    return not stage.prepared() and not stage.staged()


@pytest.fixture(params=MODES)
def merging(request: pytest.FixtureRequest, postgres_line: Postgres) -> PostgresStage:
    stage = PostgresStage(
        postgres_line,
        KEYED,
        commit_mode=request.param,
        write_mode="upsert",
        key_columns=["id"],
        order_column="seq",
        delete_column="gone",
    )
    stage.sink().check(changes().schema)
    return stage


# Upsert


def test_upsert_keeps_the_newest_of_each_key(merging: PostgresStage) -> None:
    merging.server.run(f"INSERT INTO {merging.full} VALUES (1, 'old'), (2, 'old'), (3, 'old')")
    rows = changes(
        (1, "b", 2, False),
        (1, "a", 1, None),
        (4, "new", 1, None),
        (3, None, 5, True),
        (3, "c", 4, False),
        (5, "x", 1, True),
        (6, "x", 1, True),
        (6, "back", 2, False),
        (7, "early", 3, False),
        (7, "no order", None, False),  # type: ignore[arg-type]
    )
    handle = prepare(merging, rows)
    assert merging.rows() == [(1, "old"), (2, "old"), (3, "old")]
    complete(merging.sink(), handle)
    assert merging.rows() == [(1, "b"), (2, "old"), (4, "new"), (6, "back"), (7, "early")]
    assert is_clean(merging)


def test_upsert_of_the_next_epoch_replaces(merging: PostgresStage) -> None:
    for place in range(3):
        rows = changes((1, f"epoch {place}", 1, False), (place + 10, "x", 1, False))
        complete(merging.sink(), prepare(merging, rows, place=place))
    assert merging.rows() == [(1, "epoch 2"), (10, "x"), (11, "x"), (12, "x")]


def test_a_key_without_a_value_is_refused(merging: PostgresStage) -> None:
    with pytest.raises(AssentError, match="no value in key column 'Id'"):
        prepare(merging, changes((None, "a", 1, False)))  # type: ignore[arg-type]
    assert is_clean(merging)


def test_staged_tasks_may_share_a_key(postgres: Postgres) -> None:
    stage = PostgresStage(
        postgres,
        KEYED,
        commit_mode="staged",
        write_mode="upsert",
        key_columns=["id"],
        order_column="seq",
        delete_column="gone",
    )
    stage.sink().check(changes().schema)
    assert stage.sink().distribution == ("id",)  # not known before `check`
    first = prepare(stage, changes((1, "late", 9, False), (2, "x", 1, False)), partition=0)
    second = prepare(stage, changes((1, "early", 3, False), (2, None, 2, True)), partition=1)
    complete(stage.sink(), first, second)
    assert stage.rows() == [(1, "late")]


def test_prepared_tasks_that_share_a_key_are_told_what_to_do(postgres: Postgres) -> None:
    stage = PostgresStage(
        postgres,
        KEYED,
        commit_mode="prepared",
        write_mode="upsert",
        key_columns=["id"],
        lock_timeout=0.3,
    )
    sink = stage.sink()
    sink.check(batch().schema)
    assert sink.distribution == ("id",)
    first = stage.prepare((1, "a"))
    with pytest.raises(RetriableError, match=r"repartition the rows by the key.*commitMode to sta"):
        stage.prepare((1, "b"), partition=1)
    complete(sink, first)
    assert stage.rows() == [(1, "a")]
    assert is_clean(stage)


@pytest.mark.parametrize("mode", MODES)
def test_two_rows_of_a_key_without_an_order_are_refused_before_the_vote(
    postgres: Postgres, mode: str
) -> None:
    stage = PostgresStage(
        postgres, KEYED, commit_mode=mode, write_mode="upsert", key_columns=["id"]
    )
    stage.sink().check(batch().schema)
    with pytest.raises(AssentError, match=r"23505|21000"):
        stage.prepare((1, "a"), (1, "b"))
    assert is_clean(stage)
    complete(stage.sink(), stage.prepare((1, "a"), (2, "b")))
    assert stage.rows() == [(1, "a"), (2, "b")]


def test_two_tasks_with_a_key_and_no_order_stop_and_an_order_mends_it(postgres: Postgres) -> None:
    stage = PostgresStage(
        postgres, KEYED, commit_mode="staged", write_mode="upsert", key_columns=["id"]
    )
    sink = stage.sink()
    sink.check(batch().schema)
    assert sink.distribution == ("id",)  # with foreachBatch it cannot happen
    handles = [stage.prepare((1, page), partition=n) for n, page in enumerate("ab")]
    with pytest.raises(AssentError, match=r"same key: set option orderColumn"):
        complete(sink, *handles)
    assert stage.rows() == []
    complete(stage.sink(order_column="page"), *handles)
    assert stage.rows() == [(1, "b")]


def test_upsert_of_keys_alone(merging: PostgresStage) -> None:
    keys = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    stage = PostgresStage(
        merging.server,
        "id bigint PRIMARY KEY",
        commit_mode=merging.options["commit_mode"],
        write_mode="upsert",
        key_columns=["id"],
    )
    stage.sink().check(keys.schema)
    for place in range(2):
        complete(stage.sink(), prepare(stage, keys, place=place))
    assert stage.select("id") == [(1,), (2,)]


def test_a_row_that_deletes_need_not_be_whole(postgres: Postgres) -> None:
    for mode in MODES:
        stage = PostgresStage(
            postgres,
            "id bigint PRIMARY KEY, page text NOT NULL",
            commit_mode=mode,
            write_mode="upsert",
            key_columns=["id"],
            delete_column="gone",
            order_column="seq",
        )
        stage.sink().check(changes().schema)
        stage.server.run(f"INSERT INTO {stage.full} VALUES (1, 'old')")
        complete(stage.sink(), prepare(stage, changes((1, None, 1, True))))
        assert stage.rows() == []
        with pytest.raises(AssentError, match="null in column 'page'"):
            prepare(stage, changes((2, None, 1, False)))
        assert is_clean(stage)


# Overwrite


def test_overwrite_replaces_everything_in_one_act(postgres: Postgres, tmp_path: Path) -> None:
    stage = PostgresStage(postgres, write_mode="overwrite")
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, [[(1, "a")], [(2, "b")]])
    assert stage.rows() == [(1, "a"), (2, "b")]
    votes = query.write(query.plan(coordinator, 1), 1, [[(3, "c")], []])
    assert stage.rows() == [(1, "a"), (2, "b")]
    coordinator.commit(votes, 1)
    query.checkpoint.committed.add(1)
    assert stage.rows() == [(3, "c")]
    # An empty result is a result too.
    query.run(coordinator, 2, [[], []])
    assert stage.rows() == []
    query.run(coordinator, 3, [[], [(4, "d")]])
    assert stage.rows() == [(4, "d")]
    assert is_clean(stage)


def test_an_old_overwrite_that_arrives_late_changes_nothing(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, write_mode="overwrite")
    sink = stage.sink()
    sink.check(batch().schema)
    old = stage.prepare((1, "old"), place=0)
    complete(sink, old)
    complete(sink, stage.prepare((2, "new"), place=1))
    complete(stage.sink(), old)
    assert stage.rows() == [(2, "new")]


def test_complete_mode_is_overwrite(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    sink = stage.sink()
    before = sink.replaces
    sink.check(batch().schema, overwrite=True)
    assert (before, sink.replaces) == (False, True)
    for place in range(2):
        complete(sink, stage.prepare((place, "x"), sink=sink, place=place))
    assert stage.rows() == [(1, "x")]


# Unique indexes, locks, attempts


def test_staged_rows_that_meet_a_unique_index_are_refused_before_the_vote(
    postgres: Postgres,
) -> None:
    stage = PostgresStage(postgres, KEYED, commit_mode="staged")
    stage.sink().check(batch().schema)
    complete(stage.sink(), stage.prepare((1, "a")))
    with pytest.raises(AssentError, match=r"key of rows that are in table .* already"):
        stage.prepare((1, "b"), place=1)
    with pytest.raises(AssentError, match="23505"):
        stage.prepare((2, "a"), (2, "b"), place=1)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a")]


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@pytest.mark.parametrize("mode", MODES)
def test_a_retry_after_prepare_is_not_blocked(
    postgres: Postgres, mode: str, write_mode: str, tmp_path: Path
) -> None:
    """The first attempt voted, its vote was lost; the second writes the same keys."""
    keys = ["id"] if write_mode == "upsert" else []
    stage = PostgresStage(
        postgres, KEYED, commit_mode=mode, write_mode=write_mode, key_columns=keys, lock_timeout=1.0
    )
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    query.task(assignment, 0, 0, [(1, "a"), (2, "b")], attempt=0)
    started = time.monotonic()
    vote = query.task(assignment, 0, 0, [(1, "a"), (2, "b")], attempt=1)
    assert time.monotonic() - started < 8
    assert len(stage.prepared()) == (1 if mode == "prepared" else 0)
    coordinator.commit([vote], 0)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b")]


def test_under_speculation_the_first_vote_counts_and_the_copy_waits(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The copy is still waiting for its lock when the epoch is committed; it then fails."""
    stage = PostgresStage(postgres, KEYED, commit_mode="prepared", lock_timeout=20.0)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    votes = [query.task(assignment, 0, 0, [(1, "a")], attempt=0)]
    outcome: list[object] = []

    def copy() -> None:
        try:
            outcome.append(query.task(assignment, 0, 0, [(1, "a")], attempt=1))
        except AssentError as error:
            outcome.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    time.sleep(0.3)  # it may be anywhere by now: the outcome is the same
    assert outcome == []
    coordinator.commit(votes, 0)
    thread.join(30)
    [found] = outcome
    assert isinstance(found, AssentError), found
    assert "23505" in str(found)
    assert stage.rows() == [(1, "a")]
    query.checkpoint.committed.add(0)
    query.run(coordinator, 1, [[(2, "b")]])
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b")]


def test_two_attempts_at_once_on_a_unique_index(postgres: Postgres, tmp_path: Path) -> None:
    """Both write the same keys at the same time: one prepares, the other fails or waits."""
    for mode in MODES:
        stage = PostgresStage(postgres, KEYED, commit_mode=mode, lock_timeout=1.0)
        query = SqlQuery(stage, tmp_path / mode)
        coordinator = query.start()
        assignment = query.plan(coordinator, 0)
        sinks = [stage.sink(), stage.sink()]
        open_ = [
            sink.begin(stage_name, 0)
            for sink, stage_name in zip(
                sinks,
                [_name(assignment.identity, number) for number in range(2)],
                strict=True,
            )
        ]
        sinks[0].write(open_[0], batch((1, "a")))
        open_[0]._copy.finish()  # so that it is the first one
        open_[0]._copy = None
        if mode == "prepared":
            sinks[1].write(open_[1], batch((1, "a")))
            with pytest.raises(RetriableError, match="lockTimeout"):
                sinks[1].pre_commit(open_[1])
            sinks[1].discard(open_[1])
        else:
            sinks[1].write(open_[1], batch((1, "a")))
            sinks[1].pre_commit(open_[1])
        sinks[0].pre_commit(open_[0])
        # Both votes are lost; a third attempt gets through, and the losers are swept.
        vote = query.task(assignment, 0, 0, [(1, "a")], attempt=2)
        coordinator.commit([vote], 0)
        assert is_clean(stage)
        assert stage.rows() == [(1, "a")]


def _name(identity: str, number: int) -> Any:
    from assent.protocol.name import TransactionName, nonce

    return TransactionName(identity, 0, 0, 0, nonce(), number)


def test_somebody_elses_lock_ends_in_an_error_and_not_in_a_wait(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, lock_timeout=0.3)
    sink = stage.sink()
    sink.check(batch().schema)
    with stage.server.connect(autocommit=False) as connection:
        connection.execute(f"LOCK TABLE {stage.full} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(RetriableError, match="lockTimeout"):
            sink.begin(stage.name(), 0)


def until_copy_is_blocked(postgres: Postgres) -> None:
    """Some session waits for a lock in the midst of its COPY."""
    blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'COPY%'"
    started = time.monotonic()
    while not postgres.rows(blocked):
        assert time.monotonic() - started < 10


def test_a_task_that_waits_for_a_lock_can_be_given_up(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, KEYED, commit_mode="prepared", lock_timeout=60.0)
    sink = stage.sink()
    sink.check(batch().schema)
    first = stage.prepare((1, "a"))
    waiting = sink.begin(stage.name(partition=1), 0)
    # So many that the server does not wait for more before it looks at the first.
    sink.write(waiting, batch((0, "b"), *((key, "b") for key in range(1, 20_000))))
    started = time.monotonic()
    until_copy_is_blocked(postgres)
    sink.discard(waiting)
    # It holds its first key no longer, though the one it waited for is still taken.
    complete(sink, stage.prepare((0, "c"), partition=2))
    assert time.monotonic() - started < 20
    sink.abort(first)
    assert is_clean(stage)
    assert stage.rows() == [(0, "c")]


def test_what_is_on_its_way_to_a_server_that_waits_is_bounded(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within one statement: the end of one is waited for anyway.
    monkeypatch.setattr(postgres_copy, "_RING_BYTES", 2**40)
    stage = PostgresStage(postgres, KEYED, commit_mode="prepared", lock_timeout=60.0)
    sink = stage.sink()
    sink.check(batch().schema)
    first = stage.prepare((0, "a"))
    waiting = sink.begin(stage.name(partition=1), 0)
    text = "b" * 1_000
    many = [
        batch(*((key, text) for key in range(at, at + 1_000))) for at in range(0, 99_000, 1_000)
    ]

    def write_all() -> None:
        for rows in many:
            sink.write(waiting, rows)

    writer = threading.Thread(target=write_all)
    writer.start()
    until_copy_is_blocked(postgres)
    writer.join(2)  # all of it at once would take a moment
    assert writer.is_alive()
    sink.abort(first)
    writer.join(60)
    complete(sink, sink.pre_commit(waiting))
    assert stage.server.rows(f"SELECT count(*) FROM {stage.full}") == [(99_000,)]
    assert is_clean(stage)


# Which commit mode


def test_auto_chooses_and_says_which(
    postgres: Postgres, plain_postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "assent")
    cases = [
        (PostgresStage(postgres), "prepared", "no unique index is in the way"),
        (PostgresStage(postgres, KEYED), "staged", "unique indexes (views_"),
        (PostgresStage(plain_postgres), "staged", "does not prepare transactions"),
        (PostgresStage(postgres, write_mode="overwrite"), "staged", "writeMode is overwrite"),
    ]
    for stage, mode, reason in cases:
        caplog.clear()
        stage.sink().check(batch().schema)
        assert f"commitMode {mode} for table" in caplog.text
        assert reason in caplog.text
        handle = stage.prepare((1, "a"))
        assert handle.details["mode"] == mode
        complete(stage.sink(), handle)
        assert stage.rows() == [(1, "a")]
        assert is_clean(stage)


def test_a_server_that_prepares_nothing_is_found_out_before_the_start(
    plain_postgres: Postgres,
) -> None:
    stage = PostgresStage(plain_postgres, commit_mode="prepared")
    with pytest.raises(ConfigurationError, match="max_prepared_transactions = 0; raise it"):
        stage.sink().check(batch().schema)


def test_prepared_cannot_replace_everything(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, commit_mode="prepared")
    with pytest.raises(ConfigurationError, match="cannot do that in one act"):
        stage.sink().check(batch().schema, overwrite=True)


def test_an_index_that_comes_between_two_epochs_changes_the_mode(
    postgres: Postgres, tmp_path: Path
) -> None:
    stage = PostgresStage(postgres)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, [[(1, "a")]])
    stage.server.run(f"CREATE UNIQUE INDEX ON {stage.full} (id)")
    votes = query.write(query.plan(coordinator, 1), 1, [[(2, "b")], [(3, "c")]])
    assert (len(stage.prepared()), len(stage.staged())) == (0, 2)
    coordinator.commit(votes, 1)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_more_tasks_than_prepared_transactions(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, commit_mode="prepared")
    sink = stage.sink()
    sink.check(batch().schema)
    handles: list[Handle] = []

    def prepare_all() -> None:
        for partition in range(65):
            handles.append(stage.prepare((partition, "x"), sink=sink, partition=partition))

    try:
        with pytest.raises(RetriableError, match="raise max_prepared_transactions above"):
            prepare_all()
    finally:
        for handle in handles:
            sink.abort(handle)
    assert [sink.verdict(handle) for handle in handles] == [Verdict.ABORTED] * len(handles)


def test_an_old_prepared_transaction_is_reported(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = PostgresStage(postgres, commit_mode="prepared")
    stage.sink().check(batch().schema)
    handle = stage.prepare((1, "a"))
    monkeypatch.setattr("assent.sinks.postgres_check.STUCK_SECONDS", 0.0)
    PostgresStage(postgres).sink().check(batch().schema)
    assert f"prepared transaction {handle.name} is 0 s old" in caplog.text
    stage.sink().abort(handle)
