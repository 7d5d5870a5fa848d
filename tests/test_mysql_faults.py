"""A query on a real MySQL or MariaDB: drivers that die, a server that is killed, connections cut.

Whatever happens, in the end every row is there once, nothing is prepared, nothing is staged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assent.protocol.errors import AssentError, RetriableError
from assent.protocol.step import Step, When
from assent.protocol.verdict import Verdict
from assent.sinks.mysql_session import close_idle
from assent.sinks.mysql_witness import Witnesses
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import verdict
from assent.testing.mysql import DATABASE, MySql
from assent.testing.proxy import Proxy
from tests.mysql_stage import MySqlStage
from tests.plugins.mysql import require_mysql
from tests.sql_faults import (
    DRIVER_MOMENTS,
    FIRST,
    MODES,
    SECOND,
    TASK_MOMENTS,
    THIRD,
    Moments,
    SqlFaults,
    expected,
    finish,
    kill_at_every_step,
)
from tests.sql_query import SqlQuery, batch

pytestmark = pytest.mark.mysql


@pytest.fixture(params=MODES)
def query(request: pytest.FixtureRequest, mariadb: MySql, tmp_path: Path) -> SqlQuery:
    return SqlQuery(MySqlStage(mariadb, commit_mode=request.param), tmp_path)


class TestFaults(SqlFaults):
    pass


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
        stage = MySqlStage(server, commit_mode=mode)
        kill_at_every_step(server, stage, moments, tmp_path)


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
