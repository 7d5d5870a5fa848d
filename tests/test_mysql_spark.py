"""The MySQL sink on a real Spark: both front-ends, all modes, every type."""

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
from assent.testing.mysql import MySql
from assent.testing.reader import Count, expected_rows
from tests.mysql_stage import MySqlStage

pytestmark = [pytest.mark.mysql, pytest.mark.spark]

SHORT: Boundaries = ((100, 100), (200, 205), (300, 310))


def views(session: SparkSession, boundaries: Boundaries = SHORT) -> DataFrame:
    return (
        session.readStream.format("assent-pageviews")
        .option("boundaries", format_boundaries(boundaries))
        .load()
    )


def write(
    frame: DataFrame, stage: MySqlStage, way: str, folder: Path, **more: str
) -> DataStreamWriter:
    options = {**stage.server.options(stage.full), "createTable": "true", **more}
    if way == "datasource":  # found by its name alone
        writer = frame.writeStream.format("assent-mysql").options(**options)
    else:
        values = read_options(options, assent.MySqlSink.OPTIONS, sink="assent-mysql")
        sink = assent.MySqlSink.from_options(values)
        writer = frame.writeStream.foreachBatch(assent.Epochs(sink))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def finish(writer: DataStreamWriter) -> None:
    writer.trigger(availableNow=True).start().awaitTermination()


def found(stage: MySqlStage) -> Counter[tuple[int, int]]:
    return Counter(stage.select("`partition`, `offset`"))


def expected(boundaries: Boundaries) -> Counter[tuple[int, int]]:
    return sum(expected_rows(boundaries).values(), Counter())


def is_clean(stage: MySqlStage) -> bool:
    return not stage.prepared() and not stage.staged()


@pytest.fixture
def stage(mariadb: MySql) -> MySqlStage:
    return MySqlStage(mariadb, "")


@pytest.mark.parametrize(("way", "mode"), [("datasource", "prepared"), ("foreachbatch", "staged")])
def test_append(
    session: SparkSession, stage: MySqlStage, way: str, mode: str, tmp_path: Path
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


def test_complete_mode(session: SparkSession, stage: MySqlStage, tmp_path: Path) -> None:
    counts = views(session).groupBy("app").count()
    finish(write(counts, stage, "datasource", tmp_path).outputMode("complete"))
    rows = stage.select("app, count")
    assert len(rows) == 4
    assert sum(count for _, count in rows) == sum(SHORT[-1])
    assert is_clean(stage)


def test_update_mode_into_an_upsert(
    session: SparkSession, stage: MySqlStage, tmp_path: Path
) -> None:
    counts = views(session).groupBy("app", "page").count()
    options = {"writeMode": "upsert", "keyColumns": "app,page"}
    finish(write(counts, stage, "foreachbatch", tmp_path, **options).outputMode("update"))
    rows = stage.select("app, page, count")
    assert len(rows) == 20
    assert sum(count for *_, count in rows) == sum(SHORT[-1])
    assert is_clean(stage)


def test_every_type_of_spark_arrives(session: SparkSession, mysql: MySql, tmp_path: Path) -> None:
    stage = MySqlStage(mysql, "")
    everything = views(session, ((3, 3),)).selectExpr(
        "CAST(offset AS tinyint) AS tiny",
        "CAST(offset AS smallint) AS small",
        "CAST(offset AS int) AS i",
        "offset AS big",
        "CAST(0.1 AS float) AS f",
        "0.1D AS d",
        "CAST(1.50 AS decimal(38, 18)) AS dec1",
        "'é€😀' AS s",
        "X'00FF' AS b",
        "DATE'2024-02-29' AS day",
        "TIMESTAMP'2024-02-29 12:00:00.123456Z' AS t",
        "TIMESTAMP_NTZ'2024-02-29 12:00:00.123456' AS ntz",
        "array(1, null) AS a",
        "named_struct('x', 1, 'y', array('z')) AS st",
        "map('k', 1.5D) AS m",
        "true AS yes",
        "CAST(null AS string) AS n",
    )
    finish(write(everything, stage, "datasource", tmp_path))
    checks = (
        "tiny = small AND small = i AND i = big AND ABS(f - 0.1) < 1e-8 AND d = 0.1e0"
        " AND dec1 = 1.5 AND s = 'é€😀' AND b = x'00ff' AND day = '2024-02-29'"
        " AND UNIX_TIMESTAMP(t) = 1709208000.123456 AND ntz = '2024-02-29 12:00:00.123456'"
        " AND a = JSON_ARRAY(1, null) AND st = JSON_OBJECT('x', 1, 'y', JSON_ARRAY('z'))"
        " AND m = JSON_OBJECT('k', 1.5) AND yes AND n IS NULL"
    )
    assert stage.server.rows(f"SELECT DISTINCT {checks} FROM {stage.full}") == [(1,)]
    assert len(stage.select("big")) == 6


def test_a_table_that_does_not_fit_ends_the_query_before_a_row(
    session: SparkSession, stage: MySqlStage, tmp_path: Path
) -> None:
    stage.server.run(f"CREATE TABLE {stage.full} (app varchar(9), page int)")
    frame = views(session).select("app", "page")
    with pytest.raises(StreamingQueryException, match="'page' has type string") as caught:
        finish(write(frame, stage, "datasource", tmp_path))
    assert stage.server.password not in str(caught.value)
    assert stage.select() == []
