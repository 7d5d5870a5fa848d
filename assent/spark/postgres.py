"""The format `assent-postgres`."""

from __future__ import annotations

from assent.sinks.postgres import PostgresSink
from assent.spark.source import AssentSource


class PostgresSource(AssentSource):
    """Rows of a PostgreSQL table."""

    sink_class = PostgresSink
