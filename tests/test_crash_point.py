from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from assent.protocol.errors import ConfigurationError
from assent.protocol.step import Moment, Step, When, no_trace
from assent.testing.crash import (
    CRASH_VARIABLE,
    MARKER_VARIABLE,
    CrashPoint,
    CrashTrace,
    marker_of,
    trace_from_environment,
)
from assent.testing.process import DriverProcess

POINT = CrashPoint(When.AFTER, Step.DECIDE, epoch=1)

REPORT = """
import sys
from assent.protocol.step import Moment, Step, When
from assent.testing.crash import trace_from_environment
trace = trace_from_environment()
for epoch in (0, 1, 1):
    trace(Moment(When.AFTER, Step.DECIDE, epoch))
    print("passed", epoch, flush=True)
"""


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("after-decide@1", POINT),
        ("during-commit@2", CrashPoint(When.DURING, Step.COMMIT, 2)),
        ("after-pre-commit@1/0", CrashPoint(When.AFTER, Step.PRE_COMMIT, 1, 0)),
        ("before-recover@*#2", CrashPoint(When.BEFORE, Step.RECOVER, occurrence=2)),
        ("before-write@12/3#4", CrashPoint(When.BEFORE, Step.WRITE, 12, 3, 4)),
    ],
)
def test_string_form(text: str, point: CrashPoint) -> None:
    assert str(point) == text
    assert CrashPoint.parse(text) == point


def test_every_moment_has_a_point() -> None:
    for when, step in itertools.product(When, Step):
        point = CrashPoint(when, step, 3, 1, 2)
        assert CrashPoint.parse(str(point)) == point


@pytest.mark.parametrize(
    "text",
    [
        "",
        "after-decide",
        "after-decide@",
        "after-decide@-1",
        "after-decide@1#0",
        "after-decide@1/",
        "sometime-decide@1",
        "after-lunch@1",
        "after-decide@1 ",
    ],
)
def test_what_is_no_crash_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"crash point|no step"):
        CrashPoint.parse(text)


def test_which_moments_fit() -> None:
    moment = Moment(When.AFTER, Step.PRE_COMMIT, 1, 0)
    fitting = ["after-pre-commit@1", "after-pre-commit@1/0", "after-pre-commit@*"]
    others = [
        "before-pre-commit@1",
        "after-write@1",
        "after-pre-commit@2",
        "after-pre-commit@1/1",
    ]
    assert all(CrashPoint.parse(text).fits(moment) for text in fitting)
    assert not any(CrashPoint.parse(text).fits(moment) for text in others)


def test_an_unknown_epoch_fits_the_star_alone() -> None:
    moment = Moment(When.BEFORE, Step.RECOVER)
    assert CrashPoint.parse("before-recover@*").fits(moment)
    assert not CrashPoint.parse("before-recover@0").fits(moment)


def test_without_the_variable_nothing_is_watched() -> None:
    assert trace_from_environment({}) is no_trace


@pytest.mark.parametrize(
    "environment",
    [
        {CRASH_VARIABLE: "after-decide@1"},
        {CRASH_VARIABLE: "after-lunch@1", MARKER_VARIABLE: "marker"},
    ],
)
def test_a_half_set_environment_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=CRASH_VARIABLE):
        trace_from_environment(environment)


def test_a_process_stands_at_its_point(tmp_path: Path) -> None:
    with DriverProcess(["-c", REPORT], tmp_path, crash=POINT) as driver:
        assert driver.await_marker(30) == driver.pid
        assert driver.tail().split() == ["passed", "0"]


def test_the_occurrence_counts_within_the_process(tmp_path: Path) -> None:
    point = CrashPoint(When.AFTER, Step.DECIDE, 1, occurrence=2)
    with DriverProcess(["-c", REPORT], tmp_path, crash=point) as driver:
        driver.await_marker(30)
        assert driver.tail().split() == ["passed", "0", "passed", "1"]


def test_a_process_that_is_let_go_stands_again_at_the_next_point(tmp_path: Path) -> None:
    points = [POINT, CrashPoint(When.AFTER, Step.DECIDE, 1, occurrence=2)]
    with DriverProcess(["-c", REPORT], tmp_path, crash=points) as driver:
        driver.await_marker(30)
        assert driver.standing(1) is None
        driver.release()
        driver.await_marker(30, 1)
        assert driver.tail().split() == ["passed", "0", "passed", "1"]
        driver.release(1)
        driver.await_exit(30)


def test_occurrences_count_on_when_the_trace_is_asked_for_anew(tmp_path: Path) -> None:
    environment = {CRASH_VARIABLE: "before-recover@*#2", MARKER_VARIABLE: str(tmp_path / "marker")}
    assert trace_from_environment(environment) is trace_from_environment(environment)


def test_who_comes_second_goes_on(tmp_path: Path) -> None:
    marker = marker_of(tmp_path / "marker", 0)
    marker.write_text("1\n")
    trace = CrashTrace([POINT], tmp_path / "marker")
    trace(Moment(When.AFTER, Step.DECIDE, 1))
    assert marker.read_text() == "1\n"


def test_nothing_overtakes_a_standing_process(tmp_path: Path) -> None:
    script = """
import os, threading, time
from pathlib import Path
from assent.protocol.step import Moment, Step, When
from assent.testing.crash import trace_from_environment
trace = trace_from_environment()
def other():
    while not Path(os.environ["ASSENT_CRASH_MARKER"] + "-0").exists():
        time.sleep(0.01)
    print("other arrives", flush=True)
    trace(Moment(When.BEFORE, Step.COMMIT, 1))
    print("other passed", flush=True)
threading.Thread(target=other).start()
trace(Moment(When.AFTER, Step.DECIDE, 1))
"""
    with DriverProcess(["-c", script], tmp_path, crash=POINT) as driver:
        driver.await_marker(30)
        driver.await_output("other arrives", 30)
        # The kill comes at once: had the thread not stood, it would still have had this long.
        assert threading.Event().wait(0.2) is False
        assert "other passed" not in driver.tail()


def test_a_standing_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {REPORT!r}])
child.wait()
"""
    with DriverProcess(["-c", script], tmp_path, crash=POINT) as driver:
        child = driver.await_marker(30)
        assert child != driver.pid
        [process] = [process for process in driver.processes() if process.pid == driver.pid]
        driver.kill(process)
        driver.await_none(30)
