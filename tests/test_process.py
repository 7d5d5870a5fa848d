from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from assent.protocol.step import Step, When
from assent.testing.crash import CrashPoint
from assent.testing.process import RUN_VARIABLE, DriverFailure, DriverProcess, ProcessKind

SECONDS = 60.0

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"

# The child of a child in a session of its own, whose parent has ended: nobody's process.
DETACH = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("detached", flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""

STAND_IN_A_TASK = """
import sys
from assent.testing.session import start_session

def stand(batches):
    from pyspark import TaskContext
    from assent.protocol.step import Moment, Step, When
    from assent.testing.crash import trace_from_environment
    trace_from_environment()(Moment(When.DURING, Step.WRITE, 0, TaskContext.get().partitionId()))
    yield from batches

session = start_session(sys.argv[1])
rows = session.range(0, 1000, numPartitions=2).mapInArrow(stand, "id long").count()
print("rows", rows, flush=True)
session.stop()
"""

IN_A_TASK = CrashPoint(When.DURING, Step.WRITE, 0, 1)


def test_the_exit_code_and_the_output_are_kept(tmp_path: Path) -> None:
    script = "import sys; print('hello'); sys.exit(3)"
    with DriverProcess(["-c", script], tmp_path) as driver:
        assert driver.await_exit(SECONDS, expected=3) == 3
    assert driver.output.read_text() == "hello\n"


def test_an_unexpected_end_shows_the_last_output(tmp_path: Path) -> None:
    script = "raise RuntimeError('of the driver')"
    with (
        DriverProcess(["-c", script], tmp_path) as driver,
        pytest.raises(DriverFailure, match=r"(?s)ended with 1, not 0.*of the driver"),
    ):
        driver.await_exit(SECONDS)


def test_a_driver_that_goes_on_for_too_long_is_a_failure(tmp_path: Path) -> None:
    with DriverProcess(["-c", SLEEP], tmp_path) as driver:
        with pytest.raises(DriverFailure, match="still runs"):
            driver.await_exit(0.1)
        assert driver.processes()
    assert not driver.processes()


def test_a_crash_point_that_is_never_reached_fails_as_soon_as_the_driver_ends(
    tmp_path: Path,
) -> None:
    with (
        DriverProcess(["-c", "print('done')"], tmp_path, crash=IN_A_TASK) as driver,
        pytest.raises(DriverFailure, match="during-write@0/1 was not reached: the driver"),
    ):
        driver.await_marker(SECONDS)


def test_every_process_of_the_run_is_killed_and_no_other(tmp_path: Path) -> None:
    environment = {**os.environ, RUN_VARIABLE: "of-another-run"}
    with subprocess.Popen([sys.executable, "-c", SLEEP], env=environment) as bystander:
        try:
            with DriverProcess(["-c", DETACH], tmp_path) as driver:
                driver.await_output("detached", SECONDS)
                assert len(driver.processes()) >= 2
                driver.kill_all()
                assert driver.processes() == []
                assert driver.await_exit(SECONDS, expected=None) == -9
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_killing_one_process_leaves_the_others(tmp_path: Path) -> None:
    with DriverProcess(["-c", DETACH], tmp_path) as driver:
        driver.await_output("detached", SECONDS)
        driver.kill_driver()
        assert [process.kind for process in driver.processes()] == [ProcessKind.OTHER]


def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    driver = DriverProcess(["-c", DETACH], tmp_path)

    def fail() -> None:
        with driver:
            driver.await_output("detached", SECONDS)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert driver.processes() == []
    assert list(tmp_path.iterdir()) == [driver.output]


def test_a_crash_point_of_the_tests_own_environment_does_not_reach_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSENT_CRASH", "after-decide@1")
    script = "import os; print(os.environ.get('ASSENT_CRASH'))"
    with DriverProcess(["-c", script], tmp_path) as driver:
        driver.await_exit(SECONDS)
    assert driver.output.read_text() == "None\n"


@pytest.mark.spark
def test_the_processes_of_a_local_spark(tmp_path: Path) -> None:
    arguments = ["-c", STAND_IN_A_TASK, "local[2]"]
    with DriverProcess(arguments, tmp_path, crash=IN_A_TASK) as driver:
        standing = driver.await_marker(SECONDS)
        kinds = {process.pid: process.kind for process in driver.processes()}
        assert kinds[standing] is ProcessKind.WORKER
        count = Counter(kinds.values())
        assert [
            count[kind] for kind in (ProcessKind.DRIVER, ProcessKind.JVM, ProcessKind.DAEMON)
        ] == [1, 1, 1]
        driver.kill_driver()
        assert not {ProcessKind.DRIVER, ProcessKind.JVM} & {p.kind for p in driver.processes()}
        driver.await_none(SECONDS)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == [f"crash-{driver.run}-0", driver.output.name]


@pytest.mark.spark
def test_an_executor_is_killed_and_its_task_runs_again(tmp_path: Path) -> None:
    arguments = ["-c", STAND_IN_A_TASK, "local-cluster[2,1,1024]"]
    with DriverProcess(arguments, tmp_path, crash=IN_A_TASK) as driver:
        standing = driver.await_marker(2 * SECONDS)
        executors = [p for p in driver.processes() if p.kind is ProcessKind.EXECUTOR]
        assert len(executors) == 2
        for executor in executors:
            driver.kill(executor)
        driver.await_exit(2 * SECONDS)
        assert standing not in [process.pid for process in driver.processes()]
        assert "rows 1000" in driver.tail()
    assert driver.processes() == []
