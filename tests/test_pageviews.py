from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from assent.protocol.errors import ConfigurationError
from assent.testing.boundaries import DEFAULT_BOUNDARIES, format_boundaries, parse_boundaries
from assent.testing.pageviews import PageViewsRange, PageViewsReader, page_views
from assent.testing.reader import count

BOUNDARIES = ((1500, 1200), (1500, 1203), (1600, 1300))


def views(session: SparkSession, **options: str) -> DataFrame:
    return session.readStream.format("assent-pageviews").options(**options).load()


def test_rows_follow_from_seed_partition_and_offset_alone() -> None:
    whole = page_views(7, 1, 0, 100)
    assert whole.slice(40, 20).equals(page_views(7, 1, 40, 60))
    assert not whole.equals(page_views(8, 1, 0, 100))
    assert page_views(7, 0, 0, 100)["user"] != whole["user"]
    assert len(set(whole["app"].to_pylist())) == 4


def test_each_epoch_ends_at_its_boundary() -> None:
    reader = PageViewsReader(BOUNDARIES, seed=0)
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], ReadMaxRows(1))) != offsets[-1]:
        offsets.append(end)
    assert [tuple(offset.values()) for offset in offsets] == [(0, 0), *BOUNDARIES]
    assert reader.partitions(offsets[1], offsets[2]) == [
        PageViewsRange(0, 1500, 1500),
        PageViewsRange(1, 1200, 1203),
    ]
    assert reader.partitions(offsets[1], offsets[1]) == []


def test_a_run_without_limits_reads_everything() -> None:
    reader = PageViewsReader(BOUNDARIES, seed=0)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert tuple(end.values()) == BOUNDARIES[-1]


def test_boundaries_have_a_string_form() -> None:
    assert parse_boundaries(format_boundaries(DEFAULT_BOUNDARIES)) == DEFAULT_BOUNDARIES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[[]]",
        "7",
        "[[1,-1]]",
        "[[1,true]]",
        "[[1,2],[3]]",
        "[[5,5],[5,5]]",
        "[[5,5],[6,4]]",
    ],
)
def test_boundaries_that_make_no_epochs_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="option boundaries"):
        parse_boundaries(text)


@pytest.mark.spark
def test_spark_steps_through_the_epochs_and_ends(session: SparkSession, tmp_path: Path) -> None:
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"
    query = (
        views(session, boundaries=format_boundaries(BOUNDARIES), seed="7")
        .writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert count(output, BOUNDARIES).exact
    commits = [file.name for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    assert sorted(commits) == ["0", "1", "2"]
    ends = [
        tuple(json.loads((checkpoint / "offsets" / epoch).read_text().splitlines()[-1]).values())
        for epoch in sorted(commits)
    ]
    assert ends == list(BOUNDARIES)


@pytest.mark.spark
def test_each_partition_is_a_task_of_its_own_and_rows_arrive_as_generated(
    session: SparkSession, tmp_path: Path
) -> None:
    query = (
        views(session, boundaries="[[1200,1100]]", seed="7")
        .withColumn("task", spark_partition_id())
        .writeStream.format("memory")
        .queryName("page_views_in_memory")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    table = session.table("page_views_in_memory").orderBy("partition", "offset").toArrow()
    assert table["task"].to_pylist() == table["partition"].to_pylist()
    generated = [*page_views(7, 0, 0, 1200).to_pylist(), *page_views(7, 1, 0, 1100).to_pylist()]
    assert table.drop_columns("task").to_pylist() == generated


@pytest.mark.spark
def test_an_unknown_option_is_refused(session: SparkSession, tmp_path: Path) -> None:
    query = (
        views(session, boundary="[[1,1]]")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="unknown option boundary; did you mean boundaries"):
        query.awaitTermination(60)
