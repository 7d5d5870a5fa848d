"""Found by Spark itself: it imports every module named `pyspark_…` and takes its DefaultSource."""

from assent.spark.mysql import MySqlSource as DefaultSource

__all__ = ["DefaultSource"]
