"""A Spark session that starts quickly, for tests, the demo and the benchmarks."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping

from pyspark.sql import SparkSession

from assent.testing.archive import java_options, spark_home

ROWS_PER_ARROW_BATCH = 1000

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_session(
    master: str, name: str = "assent", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark in this process; `master` is `local[n]` or a cluster on this machine."""
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Small, so that even a small partition reaches the sink in several batches.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_ARROW_BATCH))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{_JAVA_OPTIONS} {java_options()}")
        .config("spark.executor.extraJavaOptions", _JAVA_OPTIONS)
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_HOME"] = str(spark_home())
    os.environ["SPARK_WORKER_DIR"] = _work_folder()
    if not master.startswith("local["):
        for variable in _variables_of_executors():
            builder = builder.config(f"spark.executorEnv.{variable}", os.environ[variable])
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _work_folder() -> str:
    """Where executors of a local cluster work: gone with this process."""
    folder = tempfile.mkdtemp(prefix="spark-work-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _variables_of_executors() -> list[str]:
    named = {"PYTHONPATH", "PYSPARK_PYTHON", "TMPDIR"}
    return [name for name in os.environ if name in named or name.startswith("ASSENT_")]
