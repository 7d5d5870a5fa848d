"""Real Spark and a real PostgreSQL: the driver is killed (SIGKILL) and started again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from assent.ledger.settlement import unfinished
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.postgres import DATABASE, USER, Postgres
from assent.testing.process import DriverProcess
from assent.testing.reader import Count, expected_rows
from tests.kill_chain import SECONDS
from tests.postgres_stage import PostgresStage

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.faults]

BOUNDARIES: Boundaries = ((1500, 1500), (3000, 3005), (3000, 3008))
POINTS = ["after-pre-commit@1/0", "before-decide@1", "after-decide@1", "during-commit@1"]


def visible(stage: PostgresStage) -> Counter[tuple[int, int]]:
    return Counter(stage.select('"partition", "offset"'))


@pytest.mark.parametrize("front_end", ["datasource", "foreachbatch"])
@pytest.mark.parametrize("mode", ["prepared", "staged"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_around_the_decision(
    postgres: Postgres, front_end: str, mode: str, point: str, tmp_path: Path
) -> None:
    stage = PostgresStage(postgres, "")
    checkpoint = tmp_path / "checkpoint"
    login = f"{USER}:{postgres.password}@127.0.0.1:{postgres.port}"
    command = [
        *("-m", "assent.testing.job", "--front-end", front_end, "--sink", "postgres"),
        *("--option", f"url=postgresql://{login}/{DATABASE}", "--option", f"dbtable={stage.full}"),
        *("--option", f"commitMode={mode}", "--option", "createTable=true"),
        *("--checkpoint", str(checkpoint), "--boundaries", format_boundaries(BOUNDARIES)),
    ]
    epochs = expected_rows(BOUNDARIES)
    with DriverProcess(command, tmp_path, crash=CrashPoint.parse(point)) as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    seen = visible(stage)
    assert not seen - (epochs[0] + epochs[1])
    if mode == "staged":
        # All of an epoch or nothing of it, at every instant.
        assert seen in (epochs[0], epochs[0] + epochs[1])
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
    found = Count.of(visible(stage), epochs[0] + epochs[1] + epochs[2])
    assert found.exact, found
    ledger, state = open_checkpoint(str(checkpoint))
    assert unfinished(ledger, state) == []
    assert stage.staged() == []
    assert postgres.rows("SELECT gid FROM pg_prepared_xacts") == []
