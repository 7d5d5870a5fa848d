"""The demo as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.parametrize("sink", ["files", "kafka"])  # the others: assent demo --sink
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
    # Three rows past the boundary are counted twice; and where rows are visible before the task
    # has ended, as on Kafka, once more.
    counted = {"files": 20_008, "kafka": 20_011}[sink]
    assert (less["counted"], less["lost"]) == (counted, 0)
    assert less["duplicated"] == counted - 20_005
    assert (exact["counted"], exact["lost"], exact["duplicated"]) == (20_005, 0, 0)
    assert len(exact["kills"]) >= 3
