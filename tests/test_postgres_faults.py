"""A query on a real PostgreSQL: drivers that die, a server that is killed, connections cut.

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
from assent.sinks.postgres_session import asking, close_idle
from assent.sinks.postgres_witness import Witnesses
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import verdict
from assent.testing.postgres import DATABASE, Postgres
from assent.testing.proxy import Proxy
from tests.postgres_stage import PostgresStage
from tests.sql_faults import (
    DRIVER_MOMENTS,
    FIRST,
    MODES,
    SECOND,
    TASK_MOMENTS,
    THIRD,
    SqlFaults,
    assert_clean,
    expected,
    finish,
    kill_at_every_step,
    named,
)
from tests.sql_query import SqlQuery, batch

pytestmark = pytest.mark.postgres


@pytest.fixture(params=MODES)
def query(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> SqlQuery:
    return SqlQuery(PostgresStage(postgres, commit_mode=request.param), tmp_path)


class TestFaults(SqlFaults):
    pass


@pytest.mark.parametrize("moment", [*DRIVER_MOMENTS, *TASK_MOMENTS], ids=named)
def test_the_driver_dies_and_the_next_run_takes_over(
    query: SqlQuery, moment: tuple[When, Step]
) -> None:
    query.run(query.start(), 0, FIRST)
    query.die(*moment, 1, SECOND)
    seen = query.stage.rows()
    if moment[1] not in (Step.COMMIT, Step.COMPLETE):
        assert seen == expected(FIRST)
    coordinator = query.start()
    query.run(coordinator, 1, SECOND)
    assert_clean(query.stage)
    assert query.stage.rows() == expected(FIRST, SECOND)
    query.run(coordinator, 2, THIRD)
    assert_clean(query.stage)
    assert query.stage.rows() == expected(FIRST, SECOND, THIRD)


@pytest.mark.parametrize("past", [1, 2])
def test_a_commit_between_two_questions_of_the_verdict(query: SqlQuery, past: int) -> None:
    """Wherever the commit falls between the statements, it does not look like a rollback."""
    stage = query.stage
    assert isinstance(stage, PostgresStage)
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    name = SqlName.parse(handle.name)
    with stage.server.connect() as connection:
        plain = asking(connection)
        left = past

        def ask(statement: str) -> list[tuple[Any, ...]]:
            nonlocal left
            answer = plain(statement)
            left -= 1
            if left == 0:
                sink.commit(handle)
                sink.publish(0, [handle])
            return answer

        found = verdict(0, Witnesses(stage.schema, name.mark).find(ask, name))
    assert found in (Verdict.PENDING, Verdict.COMMITTED)
    if left > 0:  # it was seen prepared by the first question
        sink.commit(handle)
    assert sink.verdict(handle) is Verdict.COMMITTED


# The server


@pytest.mark.parametrize("mode", MODES)
def test_the_server_is_killed_at_every_step(
    own_postgres: Postgres, mode: str, tmp_path: Path
) -> None:
    stage = PostgresStage(own_postgres, commit_mode=mode)
    kill_at_every_step(own_postgres, stage, [*DRIVER_MOMENTS, *TASK_MOMENTS], tmp_path)


def test_a_server_that_is_down_is_retriable(own_postgres: Postgres) -> None:
    stage = PostgresStage(own_postgres)
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    own_postgres.kill()
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
        assert own_postgres.password not in str(caught.value)
    own_postgres.restart()
    assert sink.verdict(handle) is Verdict.PENDING
    sink.commit(handle)
    assert stage.rows() == [(1, "a")]


# The connection


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    close_idle()
    with Proxy(postgres.port) as proxy:
        yield proxy
    close_idle()


# What a client sends at the instant of the cut, by mode.
PIECES = {
    "prepared": [b"COPY ", b"PGCOPY", b"PREPARE TRANSACTION", b"COMMIT PREPARED", b"pg_prepared"],
    "staged": [b"CREATE TABLE", b"PGCOPY", b"COMMIT", b"FOR UPDATE", b"DROP TABLE", b"UPDATE"],
}


@pytest.mark.parametrize("answer_only", [False, True], ids=["lost", "answer-lost"])
@pytest.mark.parametrize(
    ("mode", "piece"),
    [(mode, piece) for mode, pieces in PIECES.items() for piece in pieces],
    ids=lambda value: value.decode() if isinstance(value, bytes) else value,
)
def test_the_connection_is_cut(
    postgres: Postgres, proxy: Proxy, mode: str, piece: bytes, answer_only: bool, tmp_path: Path
) -> None:
    url = f"jdbc:postgresql://127.0.0.1:{proxy.port}/{DATABASE}"
    stage = PostgresStage(postgres, commit_mode=mode, url=url)
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


def assert_clean_by_the_server(stage: PostgresStage, url: str) -> None:
    """The mark is that of the address that the sink knows, which is the proxy's."""
    assert stage.staged() == []
    assert list(stage.sink(url=url).pending(stage.identity)) == []
    assert stage.server.rows("SELECT gid FROM pg_prepared_xacts") == []
