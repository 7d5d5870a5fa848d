"""What tests share: one Spark session for all that kill nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from assent.testing.pageviews import PageViews
from assent.testing.session import start_session

pytest_plugins = [
    "tests.plugins.hbase",
    "tests.plugins.kafka",
    "tests.plugins.mysql",
    "tests.plugins.postgres",
    "tests.plugins.redis",
]


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A session of its own Spark, started once."""
    spark = start_session("local[2]", "assent-tests")
    spark.dataSource.register(PageViews)
    yield spark
    spark.stop()
