"""The rows for databases and files: five columns of different types, as in a table of orders."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from bench.query import generated

_COLUMNS = (
    "value AS id",
    "concat('customer-', value % 1000000) AS customer",
    "value * 0.25D AS price",
    "value % 2 = 0 AS paid",
    "timestamp AS created",
)


def orders(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Epochs of so many orders."""
    return generated(spark, rows, tasks, *_COLUMNS)
