"""A Spark session that starts quickly, for tests, the demo and the benchmarks."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

ROWS_PER_ARROW_BATCH = 1000

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_session(master: str, name: str = "assent") -> SparkSession:
    """Start Spark in this process. `master` is `local[n]` or `local-cluster[n,cores,memory]`."""
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
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.executor.extraJavaOptions", _JAVA_OPTIONS)
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(_writable_home())
        for variable in _variables_of_executors():
            builder = builder.config(f"spark.executorEnv.{variable}", os.environ[variable])
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _writable_home() -> Path:
    """Spark's home, but one that executors may write into.

    They keep their `work` folder in it, which must not lie within an installed package. The copy
    is made of links, in the folder for temporary files.
    """
    home = Path(tempfile.mkdtemp(prefix="spark-home-"))
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def _variables_of_executors() -> list[str]:
    named = {"PYTHONPATH", "PYSPARK_PYTHON", "TMPDIR"}
    return [name for name in os.environ if name in named or name.startswith("ASSENT_")]
