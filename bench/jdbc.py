"""Spark's JDBC writer, which streaming queries reach through `foreachBatch`."""

from __future__ import annotations

from pyspark.sql import DataFrame

from assent.testing.jars import Artifact, resolve
from bench import command
from bench.query import Options

POSTGRES = Artifact("org.postgresql", "postgresql", "42.7.8")
MARIADB = Artifact("org.mariadb.jdbc", "mariadb-java-client", "3.5.6")
MYSQL = Artifact("com.mysql", "mysql-connector-j", "9.4.0")

BATCHES = command.Size("batches", (1_000, 10_000), (10_000,), "rows of a JDBC batch")
"""The default, and a larger one. Whichever is faster is what Assent is compared with."""


def jars(*artifacts: Artifact) -> str:
    """The drivers, for `spark.jars`."""
    found = [jar for artifact in artifacts for jar in resolve(artifact, alone=True)]
    return ",".join(map(str, found))


def save(batch: DataFrame, options: Options) -> None:
    """Append a micro-batch: one transaction per task, which is what the writer does."""
    batch.write.format("jdbc").mode("append").options(**options).save()
