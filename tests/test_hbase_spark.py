"""Real Spark and a real HBase: both front-ends, and drivers that are killed (SIGKILL)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import assent
from assent.testing.boundaries import Boundaries
from assent.testing.hbase import HBaseServer
from tests.hbase_query import HBaseStage

pytestmark = [pytest.mark.hbase, pytest.mark.spark]

BOUNDARIES: Boundaries = ((1500, 1500), (3000, 3005), (3000, 3008))


def test_the_format_is_found_and_complete_mode_counts(
    session: SparkSession, hbase: HBaseServer, tmp_path: Path
) -> None:
    stage = HBaseStage(hbase)
    counts = session.readStream.format("assent-pageviews").load().groupBy("app").count()
    query = (
        counts.withColumnRenamed("count", "x")
        .writeStream.outputMode("complete")
        .format("assent-hbase")
        .option("servers", hbase.address)
        .option("table", stage.table)
        .option("keyColumns", "app")
        .option("allowComplete", "true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(int(number) for number in stage.seen().values()) == 20_005


def test_foreach_batch_in_update_mode(
    session: SparkSession, hbase: HBaseServer, tmp_path: Path
) -> None:
    stage = HBaseStage(hbase)
    counts = session.readStream.format("assent-pageviews").load().groupBy("app").count()
    sink = assent.HBaseSink(hbase.address, stage.table, ["app"], column_mapping={"count": "cf:x"})
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(assent.Epochs(sink))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(int(number) for number in stage.seen().values()) == 20_005
