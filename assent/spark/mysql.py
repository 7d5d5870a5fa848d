"""The format `assent-mysql`."""

from __future__ import annotations

from assent.sinks.mysql import MySqlSink
from assent.spark.source import AssentSource


class MySqlSource(AssentSource):
    """Rows of a MySQL or MariaDB table."""

    sink_class = MySqlSink
