"""The format `assent-hbase`."""

from __future__ import annotations

from assent.sinks.hbase import HBaseSink
from assent.spark.source import AssentSource


class HBaseSource(AssentSource):
    """Rows of an HBase table, written directly with the timestamp of their epoch."""

    sink_class = HBaseSink
