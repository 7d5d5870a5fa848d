"""The PostgreSQL sink on a real Spark: both front-ends, all modes, speculation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import assent
from assent.sinks.option import read_options
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.postgres import Postgres
from assent.testing.reader import Count, expected_rows
from tests.postgres_stage import PostgresStage

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

SHORT: Boundaries = ((100, 100), (200, 205), (300, 310))


def views(session: SparkSession, boundaries: Boundaries = SHORT) -> DataFrame:
    return (
        session.readStream.format("assent-pageviews")
        .option("boundaries", format_boundaries(boundaries))
        .load()
    )


def write(
    frame: DataFrame, stage: PostgresStage, way: str, folder: Path, **more: str
) -> DataStreamWriter:
    options = {**stage.server.options(stage.full), "createTable": "true", **more}
    if way == "datasource":
        writer = frame.writeStream.format("assent-postgres").options(**options)
    else:
        values = read_options(options, assent.PostgresSink.OPTIONS, sink="assent-postgres")
        sink = assent.PostgresSink.from_options(values)
        writer = frame.writeStream.foreachBatch(assent.Epochs(sink))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def finish(writer: DataStreamWriter) -> None:
    writer.trigger(availableNow=True).start().awaitTermination()


def found(stage: PostgresStage) -> Counter[tuple[int, int]]:
    return Counter(stage.select('"partition", "offset"'))


def expected(boundaries: Boundaries) -> Counter[tuple[int, int]]:
    return sum(expected_rows(boundaries).values(), Counter())


def is_clean(stage: PostgresStage) -> bool:
    return not stage.prepared() and not stage.staged()


@pytest.fixture
def stage(postgres: Postgres) -> PostgresStage:
    return PostgresStage(postgres, "")


@pytest.mark.parametrize("way", ["datasource", "foreachbatch"])
@pytest.mark.parametrize("mode", ["prepared", "staged"])
def test_append(
    session: SparkSession, stage: PostgresStage, way: str, mode: str, tmp_path: Path
) -> None:
    finish(write(views(session), stage, way, tmp_path, commitMode=mode))
    assert Count.of(found(stage), expected(SHORT)).exact
    assert is_clean(stage)
    assert stage.witnesses() == 6
    # Started again with more to do, in the same processes.
    longer: Boundaries = (*SHORT, (400, 400))
    finish(write(views(session, longer), stage, way, tmp_path, commitMode=mode))
    assert Count.of(found(stage), expected(longer)).exact
    assert is_clean(stage)


def test_complete_mode(session: SparkSession, stage: PostgresStage, tmp_path: Path) -> None:
    counts = views(session).groupBy("app").count()
    finish(write(counts, stage, "datasource", tmp_path).outputMode("complete"))
    rows = stage.select("app, count")
    assert len(rows) == 4
    assert sum(count for _, count in rows) == sum(SHORT[-1])
    assert is_clean(stage)


def test_complete_mode_with_an_empty_result(
    session: SparkSession, stage: PostgresStage, tmp_path: Path
) -> None:
    stage.server.run(f"CREATE TABLE {stage.full} (app text, count bigint)")
    stage.server.run(f"INSERT INTO {stage.full} VALUES ('old', 1)")
    counts = views(session).groupBy("app").count().where("count < 0")
    finish(write(counts, stage, "datasource", tmp_path).outputMode("complete"))
    assert stage.select() == []


@pytest.mark.parametrize("mode", ["prepared", "staged", "auto"])
def test_update_mode_into_an_upsert(
    session: SparkSession, stage: PostgresStage, mode: str, tmp_path: Path
) -> None:
    counts = views(session).groupBy("app", "page").count()
    options = {"writeMode": "upsert", "keyColumns": "app,page", "commitMode": mode}
    finish(write(counts, stage, "foreachbatch", tmp_path, **options).outputMode("update"))
    rows = stage.select("app, page, count")
    assert len(rows) == 20
    assert sum(count for *_, count in rows) == sum(SHORT[-1])
    assert is_clean(stage)


@pytest.mark.parametrize("mode", ["prepared", "staged"])
def test_upsert_of_keys_that_many_tasks_bring(
    session: SparkSession, stage: PostgresStage, mode: str, tmp_path: Path
) -> None:
    """Prepared: rows are given to tasks by key. Staged: they meet in the move."""
    newest = views(session).selectExpr("app", "page", "offset * 2 + partition AS seq")
    options = {
        "writeMode": "upsert",
        "keyColumns": "APP",
        "orderColumn": "seq",
        "commitMode": mode,
        "lockTimeout": "5s",
    }
    finish(write(newest, stage, "foreachbatch", tmp_path, **options))
    rows = dict(stage.select("app, seq"))
    assert set(rows) == {"atlas", "beacon", "cinder", "delta"}
    assert max(rows.values()) == 309 * 2 + 1
    assert is_clean(stage)


def test_prepared_upsert_through_the_data_source_says_what_to_do(
    session: SparkSession, stage: PostgresStage, tmp_path: Path
) -> None:
    newest = views(session, ((500, 500),)).selectExpr("app", "page", "offset AS seq")
    options = {
        "writeMode": "upsert",
        "keyColumns": "app",
        "orderColumn": "seq",
        "commitMode": "prepared",
        "lockTimeout": "1s",
    }
    with pytest.raises(StreamingQueryException, match="repartition the rows by the key") as caught:
        finish(write(newest, stage, "datasource", tmp_path, **options))
    assert stage.server.password not in str(caught.value)
    assert stage.select() == []
    # As the message says.
    finish(write(newest, stage, "datasource", tmp_path, **{**options, "commitMode": "staged"}))
    assert len(stage.select()) == 4
    assert is_clean(stage)


def test_every_type_of_spark_arrives(
    session: SparkSession, stage: PostgresStage, tmp_path: Path
) -> None:
    everything = views(session, ((3, 3),)).selectExpr(
        "CAST(offset AS tinyint) AS tiny",
        "CAST(offset AS smallint) AS small",
        "CAST(offset AS int) AS i",
        "offset AS big",
        "CAST('NaN' AS float) AS f",
        "CAST('-Infinity' AS double) AS d",
        "CAST(1.50 AS decimal(38, 18)) AS dec",
        "'é€😀' AS s",
        "X'00FF' AS b",
        "DATE'2024-02-29' AS day",
        "TIMESTAMP'2024-02-29 12:00:00.123456Z' AS t",
        "TIMESTAMP_NTZ'2024-02-29 12:00:00.123456' AS ntz",
        "INTERVAL '1 02:03:04.5' DAY TO SECOND AS i2",
        "array(1, null) AS a",
        "named_struct('x', 1, 'y', array('z')) AS st",
        "map('k', 1.5D) AS m",
        "true AS yes",
        "CAST(null AS string) AS n",
    )
    finish(write(everything, stage, "datasource", tmp_path))
    [(row,)] = stage.server.rows(
        f"SELECT DISTINCT (tiny = small AND small = i AND i = big AND f = 'NaN' AND d = '-Infinity'"
        " AND dec = 1.5 AND s = 'é€😀' AND b = '\\x00ff' AND day = '2024-02-29'"
        " AND t = '2024-02-29 12:00:00.123456Z' AND ntz = '2024-02-29 12:00:00.123456'"
        ' AND i2 = \'1 02:03:04.5\' AND a = ARRAY[1, null] AND st = \'{"x": 1, "y": ["z"]}\''
        f" AND m = '{{\"k\": 1.5}}' AND yes AND n IS NULL)::text FROM {stage.full}"
    )
    assert row == "true"
    assert len(stage.select("big")) == 6


def test_a_table_that_does_not_fit_ends_the_query_before_a_row(
    session: SparkSession, stage: PostgresStage, tmp_path: Path
) -> None:
    stage.server.run(f"CREATE TABLE {stage.full} (app text, page integer)")
    frame = views(session).select("app", "page")
    with pytest.raises(StreamingQueryException, match="'page' has type string") as caught:
        finish(write(frame, stage, "datasource", tmp_path))
    assert stage.server.password not in str(caught.value)
    assert stage.select() == []
