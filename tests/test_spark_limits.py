"""Both front-ends on a real Spark: no columns, ten thousand of them, no rows, odd texts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from assent.testing.boundaries import Boundaries, format_boundaries
from tests.test_front_ends import FrontEnd, finish, front_end

__all__ = ["front_end"]

pytestmark = pytest.mark.spark

ROWS: Boundaries = ((2, 3),)


def views(session: SparkSession) -> DataFrame:
    return (
        session.readStream.format("assent-pageviews")
        .option("boundaries", format_boundaries(ROWS))
        .load()
    )


def files(folder: Path) -> list[pa.Table]:
    found = (folder / "output").rglob("*.parquet")
    return [parquet.read_table(pa.BufferReader(file.read_bytes())) for file in found]


def test_no_columns_are_refused_and_the_query_goes_on_with_one(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="no column"):
        finish(front_end(views(session).select(), tmp_path))
    assert files(tmp_path) == []
    finish(front_end(views(session).select("app"), tmp_path))
    assert sum(table.num_rows for table in files(tmp_path)) == 5


@pytest.mark.faults  # a minute: Spark itself is slow with so many
@pytest.mark.long
def test_ten_thousand_columns(session: SparkSession, front_end: FrontEnd, tmp_path: Path) -> None:
    wide = views(session).select(*(f.lit(number).alias(f"c{number}") for number in range(10_000)))
    finish(front_end(wide, tmp_path))
    tables = files(tmp_path)
    assert {table.num_columns for table in tables} == {10_000}
    assert sum(table.num_rows for table in tables) == 5


def test_epochs_without_rows_leave_nothing(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    finish(front_end(views(session).where("false"), tmp_path))
    assert files(tmp_path) == []
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_texts_that_are_not_utf8_are_kept_in_parquet(
    session: SparkSession, front_end: FrontEnd, tmp_path: Path
) -> None:
    odd = views(session).selectExpr("cast(unhex('C328') AS string) AS odd")
    finish(front_end(odd, tmp_path))
    (column,) = {name for table in files(tmp_path) for name in table.column_names}
    assert column == "odd"
    texts = [text for table in files(tmp_path) for text in table["odd"].cast(pa.binary())]
    assert {text.as_py() for text in texts} == {b"\xc3\x28"}
    assert len(texts) == 5
