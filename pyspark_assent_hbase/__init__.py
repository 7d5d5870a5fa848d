"""Found by Spark itself: it imports every module named `pyspark_…` and takes its DefaultSource."""

from assent.spark.hbase import HBaseSource as DefaultSource

__all__ = ["DefaultSource"]
