"""Found by Spark itself: it imports every module named `pyspark_…` and takes its DefaultSource."""

from assent.spark.redis import RedisSource as DefaultSource

__all__ = ["DefaultSource"]
