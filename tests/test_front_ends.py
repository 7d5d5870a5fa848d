"""Both front-ends on a real Spark: modes, guarantees, restarts, failures and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset as dataset
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import assent
from assent.ledger.settlement import unfinished
from assent.protocol.json_value import JsonValue
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.reader import count
from tests.kill_chain import staged_files

pytestmark = pytest.mark.spark

SHORT: Boundaries = ((100, 100), (200, 205), (300, 310))
LONGER: Boundaries = (*SHORT, (400, 410))


def views(session: SparkSession, boundaries: Boundaries = SHORT) -> DataFrame:
    return (
        session.readStream.format("assent-pageviews")
        .option("boundaries", format_boundaries(boundaries))
        .load()
    )


def finish(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def to_files(frame: DataFrame, folder: Path, **options: str) -> DataStreamWriter:
    return (
        frame.writeStream.format("assent-files")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .options(**options)
    )


def to_epochs(
    frame: DataFrame, folder: Path, *sinks: assent.Sink[Any], **options: Any
) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(assent.Epochs(*sinks, **options)).option(
        "checkpointLocation", str(folder / "checkpoint")
    )


def output_sink(folder: Path, **settings: Any) -> assent.FilesSink:
    return assent.FilesSink(folder / "output", **settings)


@pytest.fixture(params=["datasource", "foreachbatch"])
def front_end(request: pytest.FixtureRequest) -> Callable[..., DataStreamWriter]:
    """Write into `<folder>/output` through either front-end, with options in camelCase."""

    def write(frame: DataFrame, folder: Path, **options: str) -> DataStreamWriter:
        if request.param == "datasource":
            return to_files(frame, folder, **options)
        return to_epochs(frame, folder, output_sink(folder), **options)

    return write


FrontEnd = Callable[..., DataStreamWriter]


# What works


def test_append(session: SparkSession, front_end: FrontEnd, tmp_path: Path) -> None:
    finish(front_end(views(session), tmp_path))
    assert count(tmp_path / "output", SHORT).exact
    assert [path.parent.name for path in staged_files(tmp_path / "output")] == ["sealed"]


def test_a_restart_in_the_same_process_goes_on(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    finish(front_end(views(session), tmp_path))
    finish(front_end(views(session, LONGER), tmp_path))
    assert count(tmp_path / "output", LONGER).exact
    ledger, _ = open_checkpoint(str(tmp_path / "checkpoint"))
    assert sorted({key.place for key in ledger.record_keys()}) == [0, 1, 2, 3]


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_lower_guarantees_need_no_ledger(
    session: SparkSession, front_end: FrontEnd, guarantee: str, tmp_path: Path
) -> None:
    finish(front_end(views(session), tmp_path, deliveryGuarantee=guarantee))
    assert count(tmp_path / "output", SHORT).exact
    assert not (tmp_path / "checkpoint" / "_assent").exists()
    assert staged_files(tmp_path / "output") == []


def test_update_mode_through_foreach_batch(session: SparkSession, tmp_path: Path) -> None:
    counts = views(session).groupBy("app").count()
    finish(to_epochs(counts, tmp_path, output_sink(tmp_path)).outputMode("update"))
    rows = dataset.dataset(tmp_path / "output", partitioning="hive").to_table().to_pylist()
    newest: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["epoch"]):
        newest[row["app"]] = row["count"]
    assert sum(newest.values()) == sum(SHORT[-1])


@pytest.mark.parametrize("way", ["datasource", "foreachbatch"])
def test_complete_mode(session: SparkSession, way: str, tmp_path: Path) -> None:
    counts = views(session).groupBy("app").count()
    writer = (
        to_files(counts, tmp_path, snapshots="true")
        if way == "datasource"
        else to_epochs(counts, tmp_path, output_sink(tmp_path))
    )
    finish(writer.outputMode("complete"))
    epochs = sorted((tmp_path / "output").iterdir())
    sums = [sum(dataset.dataset(epoch).to_table()["count"].to_pylist()) for epoch in epochs]
    assert sums == [sum(boundary) for boundary in SHORT]


def test_two_sinks_in_one_pass_and_one_decision(session: SparkSession, tmp_path: Path) -> None:
    reads = session.sparkContext.accumulator(0)

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reads.add(batch.num_rows)
            yield batch

    frame = views(session)
    frame = frame.mapInArrow(noted, frame.schema)
    other = assent.FilesSink(tmp_path / "other", file_format="json")
    finish(to_epochs(frame, tmp_path, output_sink(tmp_path), other))
    assert count(tmp_path / "output", SHORT).exact
    lines = [
        json.loads(line)
        for file in (tmp_path / "other").rglob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert len(lines) == sum(SHORT[-1])
    assert reads.value == sum(SHORT[-1])
    ledger, _ = open_checkpoint(str(tmp_path / "checkpoint"))
    assert len(ledger.record_keys()) == len(SHORT)


def test_partitioned_by_columns_as_spark_pandas_and_duckdb_read_it(
    session: SparkSession, tmp_path: Path
) -> None:
    finish(to_files(views(session), tmp_path, partitionColumns="app"))
    output = str(tmp_path / "output")
    apps = {row.app: row["count"] for row in views_by_app(session, output)}
    assert sum(apps.values()) == sum(SHORT[-1])
    assert len(apps) > 1
    assert pandas.read_parquet(output).groupby("app", observed=True).size().to_dict() == apps
    files = f"{output}/**/*.parquet"
    query = "SELECT app, count(*) FROM read_parquet(?, hive_partitioning = true) GROUP BY app"
    assert dict(duckdb.execute(query, [files]).fetchall()) == apps


def views_by_app(session: SparkSession, output: str) -> list[Row]:
    return session.read.parquet(output).groupBy("app").count().collect()


def test_the_checkpoint_default_of_the_session_reaches_foreach_batch(
    session: SparkSession, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "default"))
    try:
        writer = views(session).writeStream.foreachBatch(assent.Epochs(output_sink(tmp_path)))
        finish(writer.queryName("by-default"))
    finally:
        session.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (tmp_path / "default" / "by-default" / "_assent" / "identities").exists()


class Notes(assent.EpochListener):
    """Writes what it hears into the file that the class was told."""

    file: Path

    def on_epoch_complete(self, epoch: int) -> None:
        with self.file.open("a") as file:
            file.write(f"complete {epoch}\n")

    def snapshot(self, epoch: int) -> JsonValue:
        return {"epoch": epoch}

    def restore(self, epoch: int, state: object) -> None:
        with self.file.open("a") as file:
            file.write(f"restored {state}\n")


def test_listeners_hear_each_epoch_and_get_their_snapshot_back(
    session: SparkSession, tmp_path: Path
) -> None:
    for boundaries in (SHORT, LONGER):
        notes = Notes()
        notes.file = tmp_path / "notes"
        finish(
            to_epochs(
                views(session, boundaries), tmp_path, output_sink(tmp_path), listeners=[notes]
            )
        )
    assert (tmp_path / "notes").read_text().splitlines() == [
        "complete 0",
        "complete 1",
        "complete 2",
        "restored {'epoch': 2}",
        "complete 3",
    ]


# What fails, and goes on


def test_a_failing_task_leaves_nothing_and_the_query_goes_on_afterwards(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    stumbling = tmp_path / "stumble"
    stumbling.touch()
    path = str(stumbling)

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            if os.path.exists(path) and batch.column("offset")[0].as_py() >= 100:
                raise RuntimeError("stumbled")
            yield batch

    frame = views(session)
    frame = frame.mapInArrow(stumble, frame.schema)
    with pytest.raises(StreamingQueryException, match="stumbled"):
        finish(front_end(frame, tmp_path))
    assert count(tmp_path / "output", SHORT[:1]).exact
    stumbling.unlink()
    finish(front_end(frame, tmp_path))
    assert count(tmp_path / "output", SHORT).exact
    assert [path.parent.name for path in staged_files(tmp_path / "output")] == ["sealed"]


# What is refused, before a row is written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retainedEpoch": "5"}, "unknown option retainedepoch; did you mean retainedEpochs?"),
        ({"retainedEpochs": "none"}, "retainedEpochs is 'none'; expected a whole number"),
        ({"deliveryGuarantee": "twice"}, "expected one of exactly_once, at_least_once, none"),
        ({"onTimeout": "cry"}, "expected one of rewrite, fail, ignore"),
        ({"fileFormat": "orc"}, "fileFormat is 'orc'; expected one of parquet, json, csv"),
        ({"path": "s3a://bucket/output"}, "s3a"),
        ({"partitionColumns": "colour"}, "colour"),
        ({"listeners": "no.such:thing"}, "no.such:thing"),
    ],
)
def test_bad_options(
    session: SparkSession, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException) as error:
        finish(to_files(views(session), tmp_path, **options))
    assert "ConfigurationError" in str(error.value)
    assert message in str(error.value)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_checkpoint_that_does_not_reach_the_sink(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "default"))
    try:
        writer = views(session).writeStream.format("assent-files")
        writer = writer.option("path", str(tmp_path / "output"))
        with pytest.raises(StreamingQueryException) as error:
            finish(writer)
        assert "spark.sql.streaming.checkpointLocation does not reach the sink" in str(error.value)
        assert 'option("checkpointLocation"' in str(error.value)
        finish(writer.option("allowDowngrade", "true"))
    finally:
        session.conf.unset("spark.sql.streaming.checkpointLocation")
    assert count(tmp_path / "output", SHORT).exact


def test_a_temporary_checkpoint_is_not_durable(session: SparkSession, tmp_path: Path) -> None:
    writer = views(session).writeStream.foreachBatch(assent.Epochs(output_sink(tmp_path)))
    with pytest.raises(StreamingQueryException, match="needs a durable checkpoint"):
        finish(writer)


def test_a_copied_checkpoint(session: SparkSession, front_end: FrontEnd, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    finish(front_end(views(session), first))
    shutil.copytree(first / "checkpoint", second / "checkpoint")
    with pytest.raises(StreamingQueryException, match="assent adopt"):
        finish(front_end(views(session, LONGER), second))
    assert not list(second.rglob("*.parquet"))


def test_other_sinks(session: SparkSession, front_end: FrontEnd, tmp_path: Path) -> None:
    finish(front_end(views(session), tmp_path))
    moved = assent.FilesSink(tmp_path / "elsewhere")
    with pytest.raises(StreamingQueryException, match="elsewhere") as error:
        finish(to_epochs(views(session, LONGER), tmp_path, moved))
    assert "new checkpointLocation" in str(error.value)


def test_another_query_in_the_checkpoint(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    finish(front_end(views(session), tmp_path))
    for folder in (tmp_path / "checkpoint").iterdir():
        if folder.name != "_assent":
            folder.unlink() if folder.is_file() else shutil.rmtree(folder)
    with pytest.raises(StreamingQueryException, match="belongs to query"):
        finish(front_end(views(session), tmp_path))
    assert count(tmp_path / "output", SHORT).exact


def test_an_older_checkpoint_restored(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    finish(front_end(views(session), tmp_path))
    for log in ("offsets", "commits"):
        for number in (1, 2):
            for name in (f"{number}", f".{number}.crc"):
                (tmp_path / "checkpoint" / log / name).unlink()
    with pytest.raises(StreamingQueryException, match="older state of the checkpoint"):
        finish(front_end(views(session), tmp_path))
    assert count(tmp_path / "output", SHORT).exact


def test_the_guarantee_is_not_lowered_over_an_unfinished_epoch(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    finish(front_end(views(session), tmp_path))
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    with pytest.raises(StreamingQueryException, match="deliveryGuarantee=exactly_once before"):
        finish(front_end(views(session), tmp_path, deliveryGuarantee="at_least_once"))
    finish(front_end(views(session), tmp_path))
    assert count(tmp_path / "output", SHORT).exact
    ledger, checkpoint = open_checkpoint(str(tmp_path / "checkpoint"))
    assert unfinished(ledger, checkpoint) == []


def test_schemas_that_cannot_be_written(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    frame = views(session).selectExpr("app", "map(app, offset) AS seen")
    with pytest.raises(StreamingQueryException, match="seen"):
        finish(to_files(frame, tmp_path, fileFormat="csv"))
    collision = views(session).withColumnRenamed("app", "epoch")
    with pytest.raises(StreamingQueryException, match="epochColumn"):
        finish(front_end(collision, tmp_path))
    interval = views(session).selectExpr("app", "make_interval(1) AS span")
    with pytest.raises(StreamingQueryException, match="column span has the type interval"):
        finish(front_end(interval, tmp_path))
    assert not list(tmp_path.rglob("*.parquet"))


def test_complete_mode_needs_a_word(session: SparkSession, tmp_path: Path) -> None:
    counts = views(session).groupBy("app").count()
    with pytest.raises(StreamingQueryException, match="snapshots"):
        finish(to_files(counts, tmp_path).outputMode("complete"))


def test_batch_writes_and_reads(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"use df\.writeStream, not df\.write"):
        session.range(3).write.format("assent-files").option("path", str(tmp_path)).mode(
            "append"
        ).save()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "at least one sink"),
        (("output",), {}, "is not a sink"),
        ((assent.FilesSink("somewhere"),), {"guarantee": "none"}, "unknown option guarantee"),
        ((assent.FilesSink("twice"), assent.FilesSink("twice")), {}, "the same place"),
    ],
)
def test_epochs_refuses_at_once(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(assent.ConfigurationError, match=message):
        assent.Epochs(*arguments, **options)


def test_epochs_refuses_another_checkpoint_than_sparks(
    session: SparkSession, tmp_path: Path
) -> None:
    writer = to_epochs(
        views(session), tmp_path, output_sink(tmp_path), checkpointLocation=str(tmp_path / "other")
    )
    with pytest.raises(StreamingQueryException, match="Spark keeps this query's checkpoint at"):
        finish(writer)
