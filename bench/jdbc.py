"""Spark's JDBC writer, which streaming queries reach through `foreachBatch`."""

from __future__ import annotations

from pyspark.sql import DataFrame

from assent.testing.jars import Artifact, resolve
from bench.query import Options

POSTGRES = Artifact("org.postgresql", "postgresql", "42.7.8")
MARIADB = Artifact("org.mariadb.jdbc", "mariadb-java-client", "3.5.6")
MYSQL = Artifact("com.mysql", "mysql-connector-j", "9.4.0")

BATCH_ROWS = "10000"
"""Rows of a batch: the default is 1,000; more than this did not make it faster."""


def jars(*artifacts: Artifact) -> str:
    """The drivers, for `spark.jars`."""
    found = [jar for artifact in artifacts for jar in resolve(artifact, alone=True)]
    return ",".join(map(str, found))


def save(batch: DataFrame, options: Options) -> None:
    """Append a micro-batch: one transaction per task, which is what the writer does."""
    batch.write.format("jdbc").mode("append").options(**options).save()
