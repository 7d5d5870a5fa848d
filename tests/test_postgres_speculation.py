"""Real Spark with speculation, a real PostgreSQL, and a unique index in the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from assent.testing.crash import CrashPoint
from assent.testing.pipeline import ROWS_PER_EPOCH, Pipeline, scripted
from assent.testing.postgres import Postgres
from assent.testing.process import DriverProcess
from assent.testing.spark_cluster import SparkCluster
from assent.testing.stage_postgres import PostgresStage

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.long,
]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "1g",
}
# At these, the task that stands holds no keys, or has prepared. (A prepared transaction's copy
# that meets one which is still writing waits for its locks, and fails: auto chooses staged.)
STEPS = {
    "prepared": ["before-begin@1/0", "after-begin@2/1", "before-write@3/0", "after-pre-commit@4/0"],
    "staged": [
        "after-begin@1/1",
        "during-write@2/0",
        "before-pre-commit@3/1",
        "after-pre-commit@4/0",
    ],
}


class KeyedStage(PostgresStage):
    """The table has a primary key, whatever the mode."""

    def prepare(self, trial: str) -> Sequence[str]:
        words = super().prepare(trial)
        self._server.run(
            f'CREATE TABLE "{trial}".views ("partition" int, "offset" bigint, app text, page text,'
            ' "user" text, viewed_at timestamptz, PRIMARY KEY ("partition", "offset"))'
        )
        return words


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
@pytest.mark.parametrize("mode", ["prepared", "staged"])
def test_speculation_on_a_unique_index(
    postgres: Postgres, mode: str, write_mode: str, tmp_path: Path
) -> None:
    """A task that stands is overtaken by its copy, and goes on when its epoch is committed."""
    more = {"writeMode": write_mode, "lockTimeout": "3s"}
    if write_mode == "upsert":
        more["keyColumns"] = "partition,offset"
    chosen = [
        word for name, value in SPECULATION.items() for word in ("--setting", f"{name}={value}")
    ]
    with SparkCluster() as cluster:
        pipeline = Pipeline(
            tmp_path,
            KeyedStage(postgres, mode, more),
            scripted(epochs=6),
            more=["--master", cluster.url, *chosen],
        )
        with pipeline.watch() as watch:
            reached = iter(STEPS[mode])

            def overtake(driver: DriverProcess, standing: int) -> None:
                epoch = CrashPoint.parse(next(reached)).epoch
                assert epoch is not None
                watch.await_count((epoch + 1) * ROWS_PER_EPOCH)

            assert pipeline.disturb_at(STEPS[mode], overtake) == 1
            pipeline.assert_exactly_once(watch)
