"""A query on a real MySQL or MariaDB: drivers that die, a server that is killed, connections cut.

Whatever happens, in the end every row is there once, nothing is prepared, nothing is staged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assent.protocol.errors import AssentError, FencedError, RetriableError
from assent.protocol.step import Moment, Step, When
from assent.protocol.verdict import Verdict
from assent.sinks.mysql_session import close_idle
from assent.sinks.mysql_witness import Witnesses
from assent.sinks.mysql_xa import xid
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import verdict
from assent.testing.mysql import DATABASE, MySql
from assent.testing.proxy import Proxy
from tests.mysql_stage import MySqlStage
from tests.plugins.mysql import require_mysql
from tests.sql_query import Rows, SqlQuery, SqlStage, batch

pytestmark = pytest.mark.mysql

FIRST: Rows = [[(1, "a"), (2, "b")], [(3, "c")]]
SECOND: Rows = [[(4, "d"), (5, "e")], [(6, "f")]]
THIRD: Rows = [[(7, "g")]]
MODES = ["prepared", "staged"]
Moments = list[tuple[When, Step]]

DRIVER_MOMENTS = [
    (When.BEFORE, Step.RECOVER),
    (When.AFTER, Step.RECOVER),
    (When.BEFORE, Step.DECIDE),
    (When.AFTER, Step.DECIDE),
    (When.BEFORE, Step.COMMIT),
    (When.DURING, Step.COMMIT),
    (When.AFTER, Step.COMMIT),
    (When.BEFORE, Step.COMPLETE),
    (When.AFTER, Step.COMPLETE),
]
TASK_MOMENTS = [
    (When.BEFORE, Step.BEGIN),
    (When.AFTER, Step.BEGIN),
    (When.BEFORE, Step.WRITE),
    (When.DURING, Step.WRITE),
    (When.BEFORE, Step.PRE_COMMIT),
    (When.AFTER, Step.PRE_COMMIT),
]


def named(moment: tuple[When, Step]) -> str:
    return f"{moment[0].value}-{moment[1].name.lower()}"


def expected(*epochs: Rows) -> list[tuple[int, str]]:
    return sorted(row for epoch in epochs for part in epoch for row in part)


def finish(query: SqlQuery, epoch: int, rows: Rows, *, attempts: int = 4) -> None:
    """Start drivers until one gets the epoch done, as an operator would."""
    for left in reversed(range(attempts)):
        try:
            query.run(query.start(), epoch, rows)
            return
        except AssentError:
            if not left:
                raise


def assert_clean(stage: SqlStage) -> None:
    assert stage.prepared() == []
    assert stage.staged() == []


@pytest.fixture(params=MODES)
def query(request: pytest.FixtureRequest, mariadb: MySql, tmp_path: Path) -> SqlQuery:
    return SqlQuery(MySqlStage(mariadb, commit_mode=request.param), tmp_path)


# Drivers


def test_epochs_follow_one_another(query: SqlQuery) -> None:
    coordinator = query.start()
    for epoch, rows in enumerate((FIRST, SECOND, [[], []], THIRD)):
        query.run(coordinator, epoch, rows)
        assert_clean(query.stage)
    assert query.stage.rows() == expected(FIRST, SECOND, THIRD)


def test_a_decided_transaction_that_an_administrator_rolled_back_is_rewritten(
    query: SqlQuery,
) -> None:
    stage = query.stage
    assert isinstance(stage, MySqlStage)
    query.run(query.start(), 0, FIRST)
    query.die(When.AFTER, Step.DECIDE, 1, SECOND)
    for gid in stage.prepared()[:1]:
        stage.server.run(f"XA ROLLBACK {xid(SqlName.parse(gid))}")
    for table in stage.staged()[:1]:
        stage.server.run(f"DROP TABLE {stage.schema}.{table}")
    coordinator = query.start()
    assignment = query.plan(coordinator, 1)
    assert assignment.decided is not None
    assert assignment.decided.torn is not None
    assert len(assignment.decided.torn.parts) == 1
    coordinator.commit(query.write(assignment, 1, SECOND), 1)
    query.checkpoint.committed.add(1)
    query.run(coordinator, 2, THIRD)
    assert_clean(stage)
    assert stage.rows() == expected(FIRST, SECOND, THIRD)


def test_two_drivers_the_slow_one_stops_and_nothing_is_twice(query: SqlQuery) -> None:
    slow = query.start()
    query.run(slow, 0, FIRST)
    assignment = query.plan(slow, 1)
    late = query.write(assignment, 1, SECOND)
    fast = query.start()
    query.run(fast, 1, SECOND)
    assert query.stage.rows() == expected(FIRST, SECOND)
    with pytest.raises(FencedError):
        slow.commit(late, 1)
    query.run(fast, 2, THIRD)
    assert_clean(query.stage)
    assert query.stage.rows() == expected(FIRST, SECOND, THIRD)


def test_two_publishers_at_once(query: SqlQuery) -> None:
    stage = query.stage
    stage.sink().check(batch().schema)
    handles = [stage.prepare((number, "x"), partition=number) for number in range(4)]
    barrier = threading.Barrier(4)
    failures: list[Exception] = []

    def publish() -> None:
        sink = stage.sink()
        barrier.wait()
        try:
            for handle in handles:
                try:
                    sink.commit(handle)
                except RetriableError:
                    assert sink.verdict(handle) in (Verdict.COMMITTED, Verdict.PENDING)
            sink.publish(0, handles)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(stage.rows()) == 4
    assert [stage.sink().verdict(handle) for handle in handles] == [Verdict.COMMITTED] * 4
    assert_clean(stage)


def test_a_verdict_during_a_commit_is_never_aborted(query: SqlQuery) -> None:
    """Many commits, each beside somebody who asks all the time."""
    stage = query.stage
    sink = stage.sink()
    sink.check(batch().schema)
    for number in range(40):
        handle = stage.prepare((number, "x"), sink=sink)
        done = threading.Event()
        seen: list[Verdict] = []

        def ask(handle=handle, done=done, seen=seen) -> None:  # type: ignore[no-untyped-def]
            while not done.is_set():
                seen.append(sink.verdict(handle))

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            sink.commit(handle)
            sink.publish(0, [handle])
        finally:
            done.set()
            thread.join()
        assert set(seen) <= {Verdict.PENDING, Verdict.COMMITTED}
        assert sink.verdict(handle) is Verdict.COMMITTED
    assert len(stage.rows()) == 40


@pytest.mark.parametrize("past", [1, 2, 3])
def test_a_commit_between_two_questions_of_the_verdict(query: SqlQuery, past: int) -> None:
    """Wherever the commit falls between the statements, it does not look like a rollback."""
    stage = query.stage
    assert isinstance(stage, MySqlStage)
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    name = SqlName.parse(handle.name)
    left = past
    with stage.make()._sessions().control() as session:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            nonlocal left
            answer = session.ask(statement)
            left -= 1
            if left == 0:
                sink.commit(handle)
                sink.publish(0, [handle])
            return answer

        prepared = stage.options["commit_mode"] == "prepared"
        witnesses = Witnesses(stage.schema, name.mark)
        found = verdict(0, witnesses.find(ask, name, prepared=prepared))
    assert found in (Verdict.PENDING, Verdict.COMMITTED)
    if left > 0:  # it was seen prepared by the first question, or there was no such question
        sink.commit(handle)
    assert sink.verdict(handle) is Verdict.COMMITTED


# The server


EVERY = [*DRIVER_MOMENTS, *TASK_MOMENTS]
# MySQL takes seconds to come back: all of it is in the long fault matrices.
WORST = [
    (When.AFTER, Step.PRE_COMMIT),
    (When.BEFORE, Step.DECIDE),
    (When.AFTER, Step.DECIDE),
    (When.DURING, Step.COMMIT),
]


@pytest.mark.parametrize(
    ("release", "settings", "moments"),
    [
        ("mariadb", {}, EVERY),
        ("mariadb", {"log-bin": "log", "server-id": "1", "sync-binlog": "1"}, WORST),
        ("mysql", {}, WORST),
        pytest.param("mysql", {}, EVERY, marks=pytest.mark.faults),
        pytest.param("mysql-before", {}, EVERY, marks=pytest.mark.faults),
    ],
    ids=["mariadb", "mariadb-log", "mysql", "mysql-every", "mysql-before-every"],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_server_is_killed_at_every_step(
    release: str, settings: dict[str, str], moments: Moments, mode: str, tmp_path: Path
) -> None:
    with require_mysql(release, settings) as server:
        kill_at_every_step(server, moments, mode, tmp_path)


def kill_at_every_step(own_mysql: MySql, moments: Moments, mode: str, tmp_path: Path) -> None:
    stage = MySqlStage(own_mysql, commit_mode=mode)
    query = SqlQuery(stage, tmp_path)
    everything: list[Rows] = []
    for epoch, moment in enumerate(moments):
        rows: Rows = [[(10 * epoch, "a"), (10 * epoch + 1, "b")], [(10 * epoch + 2, "c")]]
        everything.append(rows)
        killed = False

        def trace(reached: Moment, moment=moment) -> None:  # type: ignore[no-untyped-def]
            nonlocal killed
            if (reached.when, reached.step) == moment and not killed:
                killed = True
                own_mysql.kill()
                own_mysql.restart()

        try:
            query.run(query.start(trace), epoch, rows, trace)
        except AssentError:
            finish(query, epoch, rows)
        assert killed, moment
        assert_clean(stage)
        assert stage.rows() == expected(*everything), named(moment)


def test_a_server_that_is_down_is_retriable(own_mysql: MySql) -> None:
    stage = MySqlStage(own_mysql)
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    own_mysql.kill()
    for act in (
        lambda: sink.check(batch().schema),
        lambda: sink.begin(stage.name(), 0),
        lambda: sink.commit(handle),
        lambda: sink.publish(0, [handle]),
        lambda: sink.abort(handle),
        lambda: sink.verdict(handle),
        lambda: sink.pending(stage.identity),
    ):
        with pytest.raises(RetriableError, match=r"127\.0\.0\.1") as caught:
            act()
        assert own_mysql.password not in str(caught.value)
    own_mysql.restart()
    assert sink.verdict(handle) is Verdict.PENDING
    sink.commit(handle)
    assert stage.rows() == [(1, "a")]


# The connection


@pytest.fixture
def proxy(mariadb: MySql) -> Iterator[Proxy]:
    close_idle()
    with Proxy(mariadb.port) as proxy:
        yield proxy
    close_idle()


# What a client sends at the instant of the cut, by mode.
PIECES = {
    "prepared": [
        *(b"XA START", b"LOAD DATA", b"4\td\n", b"XA END", b"XA PREPARE", b"processlist"),
        *(b"XA COMMIT", b"XA RECOVER"),
    ],
    "staged": [
        *(b"CREATE TABLE", b"LOAD DATA", b"4\td\n", b"INSERT INTO `database", b"COMMIT"),
        *(b"FOR UPDATE", b"UPDATE `database", b"DROP TABLE"),
    ],
}


@pytest.mark.parametrize("answer_only", [False, True], ids=["lost", "answer-lost"])
@pytest.mark.parametrize(
    ("mode", "piece"),
    [(mode, piece) for mode, pieces in PIECES.items() for piece in pieces],
    ids=lambda value: value.decode() if isinstance(value, bytes) else value,
)
def test_the_connection_is_cut(
    mariadb: MySql, proxy: Proxy, mode: str, piece: bytes, answer_only: bool, tmp_path: Path
) -> None:
    url = f"jdbc:mariadb://127.0.0.1:{proxy.port}/{DATABASE}?sslMode=disable"
    stage = MySqlStage(mariadb, commit_mode=mode, url=url)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, FIRST)
    cuts = 0

    def watch(sent: bytes) -> None:
        nonlocal cuts
        if piece in sent and not cuts:
            cuts += 1
            (proxy.cut_answers if answer_only else proxy.cut)()

    proxy.watch = watch
    try:
        query.run(coordinator, 1, SECOND)
    except AssentError:
        finish(query, 1, SECOND)
    assert cuts == 1
    query.run(query.start(), 2, THIRD)
    assert stage.rows() == expected(FIRST, SECOND, THIRD)
    assert_clean_by_the_server(stage, url)


def assert_clean_by_the_server(stage: MySqlStage, url: str) -> None:
    """The mark is that of the address that the sink knows, which is the proxy's."""
    assert stage.staged() == []
    assert list(stage.sink(url=url).pending(stage.identity)) == []
    assert stage.server.rows("XA RECOVER") == []
