"""The demo as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.faults]


# What a job that is only at least once counts. Three rows past the boundary are there twice; and
# where rows are visible before their task has ended, once more. Where a key replaces itself, none.
COUNTED = {
    "files": 20_008,
    "kafka": 20_011,
    "postgres": 20_011,
    "mysql": 20_011,
    "redis": 20_005,
    "hbase": 20_005,
}
IN_CI = ("files", "kafka")


def marks(sink: str) -> list[pytest.MarkDecorator]:
    server = [] if sink == "files" else [getattr(pytest.mark, sink)]
    return server if sink in IN_CI else [*server, pytest.mark.long]


@pytest.mark.parametrize("sink", [pytest.param(sink, marks=marks(sink)) for sink in COUNTED])
def test_the_demo_counts_right_with_exactly_once_and_wrong_without(sink: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "assent.ops.command", "demo", "--sink", sink, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["ok"], result["sink"], result["expected"]) == (True, sink, 20_005)
    less, exact = result["trials"]
    counted = COUNTED[sink]
    assert (less["counted"], less["lost"]) == (counted, 0)
    assert less["duplicated"] == counted - 20_005
    assert (exact["counted"], exact["lost"], exact["duplicated"]) == (20_005, 0, 0)
    assert len(exact["kills"]) >= 3
