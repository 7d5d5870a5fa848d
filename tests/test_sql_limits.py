"""Databases: rows at the limits, tables that vanish; an error that says so, or it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from assent.ledger.local import LocalStore
from assent.protocol.errors import AssentError, ConfigurationError
from assent.testing.query import BatchQuery
from tests.limits import Obstacle, texts
from tests.mysql_stage import MySqlStage
from tests.postgres_stage import PostgresStage

pytestmark = [pytest.mark.postgres, pytest.mark.mysql]

Make = Callable[..., PostgresStage | MySqlStage]

MODES = ("prepared", "staged")


@pytest.fixture(params=["postgres", "mariadb"])
def make(request: pytest.FixtureRequest) -> Make:
    server = request.getfixturevalue(request.param)
    kind = PostgresStage if request.param == "postgres" else MySqlStage
    return lambda *arguments, **options: kind(server, *arguments, **options)


def rows(*pages: bytes | None, first: int = 1) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + len(pages)), pa.int64())
    return pa.record_batch({"id": numbers, "page": texts(*pages)})


def obstacle(stage: PostgresStage | MySqlStage, folder: Path) -> Obstacle:
    query = BatchQuery(stage.sink, LocalStore(str(folder / "_assent")))
    stage.sink().check(rows().schema)
    return Obstacle(
        query, stage.rows, lambda: [*stage.prepared(), *stage.staged()], [[rows(b"first", first=0)]]
    )


@pytest.mark.parametrize("mode", MODES)
def test_empty_and_large_texts_arrive(make: Make, tmp_path: Path, mode: str) -> None:
    stage = make("id bigint, page text" if _is_postgres(make) else _LONG, commit_mode=mode)
    met = obstacle(stage, tmp_path)
    large = "x" * 1_000_000
    tasks = [[rows(b"", large.encode()), rows()], [], [rows()]]
    met.goes_on(tasks, [(0, "first"), (1, ""), (2, large)])


_LONG = "id bigint, page longtext"


def _is_postgres(make: Make) -> bool:
    return isinstance(make(""), PostgresStage)


@pytest.mark.parametrize("mode", MODES)
def test_texts_that_are_not_utf8_fail_their_task(make: Make, tmp_path: Path, mode: str) -> None:
    met = obstacle(make(commit_mode=mode), tmp_path)
    for bad in (b"\xc3\x28", b"\xff", b"half a pair \xed\xa0\x80"):
        met.refuses([[rows(b"a")], [rows(bad, first=2)]], "UTF-?8")
    met.goes_on([[rows(b"a")], [rows(b"b", first=2)]], [(0, "first"), (1, "a"), (2, "b")])


@pytest.mark.parametrize("mode", MODES)
def test_a_zero_byte_is_kept_or_refused(make: Make, tmp_path: Path, mode: str) -> None:
    met = obstacle(make(commit_mode=mode), tmp_path)
    tasks, expected = [[rows(b"a\0b")]], [(0, "first"), (1, "a\0b")]
    if _is_postgres(make):
        met.refuses(tasks, "column 'page' holds a text with a NUL")
        tasks, expected = [[rows(b"ab")]], [(0, "first"), (1, "ab")]
    met.goes_on(tasks, expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_is_null(make: Make, tmp_path: Path, mode: str) -> None:
    met = obstacle(make("id bigint NOT NULL, page text", commit_mode=mode), tmp_path)
    bad = pa.record_batch({"id": pa.array([None], pa.int64()), "page": ["a"]})
    met.refuses([[rows(b"a")], [bad]], "null|no value in column 'id'")
    met.goes_on([[rows(b"a")]], [(0, "first"), (1, "a")])


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_vanishes(make: Make, tmp_path: Path, mode: str) -> None:
    stage = make(commit_mode=mode)
    met = obstacle(stage, tmp_path)
    stage.server.run(f"DROP TABLE {stage.full}")
    met.seen = list
    met.refuses([[rows(b"a")]], stage.table, visible=[])
    met.seen = stage.rows
    stage.server.run(f"CREATE TABLE {stage.full} (id bigint, page varchar(100))")
    met.goes_on([[rows(b"a")]], [(1, "a")])


def test_ten_thousand_columns_are_refused_with_the_servers_reason(make: Make) -> None:
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(10_000)])
    stage = make("", create_table=True)
    with pytest.raises(AssentError, match=r"columns") as refused:
        stage.sink().check(wide)
    assert len(str(refused.value)) < 1_000
    assert stage.staged() == []
    fitting = make()
    with pytest.raises(ConfigurationError, match="has no column for 'column_0'"):
        fitting.sink().check(wide)


def test_no_columns_at_all(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="the rows have no columns"):
        make().sink().check(pa.schema([]))
