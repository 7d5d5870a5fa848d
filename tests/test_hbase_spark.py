"""Real Spark and a real HBase: both front-ends, and drivers that are killed (SIGKILL)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import assent
from assent.ledger.settlement import unfinished
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.hbase import HBaseServer
from assent.testing.process import DriverProcess
from assent.testing.reader import Count, expected_rows
from tests.hbase_query import HBaseStage
from tests.kill_chain import SECONDS

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


@pytest.mark.faults
@pytest.mark.parametrize(
    ("front_end", "point"),
    [
        ("datasource", "during-write@1"),
        ("foreachbatch", "before-decide@1"),
        ("datasource", "after-decide@1"),
    ],
)
def test_killed_at_the_worst_instants(
    hbase: HBaseServer, front_end: str, point: str, tmp_path: Path
) -> None:
    stage = HBaseStage(hbase)
    checkpoint = tmp_path / "checkpoint"
    command = [
        *("-m", "assent.testing.job", "--front-end", front_end, "--sink", "hbase"),
        *("--servers", hbase.address, "--table", stage.table),
        *("--checkpoint", str(checkpoint), "--boundaries", format_boundaries(BOUNDARIES)),
    ]
    epochs = expected_rows(BOUNDARIES)

    def visible() -> Counter[tuple[int, int]]:
        pairs = (key.split(":") for key in stage.rows())
        return Counter((int(partition), int(offset)) for partition, offset in pairs)

    with DriverProcess(command, tmp_path, crash=CrashPoint.parse(point)) as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    # Rows of the epoch that was under way may be there, and none of a later one.
    assert not visible() - (epochs[0] + epochs[1])
    assert not epochs[0] - visible()
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
    found = Count.of(visible(), epochs[0] + epochs[1] + epochs[2])
    assert found.exact, found
    ledger, state = open_checkpoint(str(checkpoint))
    assert unfinished(ledger, state) == []
