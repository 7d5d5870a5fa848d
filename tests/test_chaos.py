"""The chaos runner: what it plans, how it judges, and that it finds what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from assent.testing.chaos import __main__ as command
from assent.testing.chaos.__main__ import main, torment
from assent.testing.chaos.report import render
from assent.testing.chaos.result import Result
from assent.testing.chaos.strike import EPOCHS_PER_START, Fault, Strike, draw_plan
from assent.testing.crash import CrashPoint
from assent.testing.disk import SmallDisk
from assent.testing.job import BUILT_IN
from assent.testing.reader import Rows

SEED = 20261115
ONCE: Rows = Counter({(0, 0): 1, (0, 1): 1})


def result() -> Result:
    return Result("files", SEED, "exactly_once")


# What is planned


def test_the_same_seed_gives_the_same_plan() -> None:
    faults = list(Fault)
    assert draw_plan(SEED, 3, 40, faults) == draw_plan(SEED, 3, 40, faults)
    assert draw_plan(SEED, 3, 40, faults) != draw_plan(SEED, 4, 40, faults)
    assert draw_plan(SEED, 3, 40, faults) != draw_plan(SEED + 1, 3, 40, faults)


def test_all_faults_and_all_steps_are_drawn_and_the_backlog_is_enough() -> None:
    plans = [draw_plan(SEED, start, 7, list(Fault)) for start in range(200)]
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {strike.fault for strike in strikes} == set(Fault)
    assert len({strike.step for strike in strikes}) == 8  # seven steps, and any time
    for plan in plans:
        points = [strike.point for strike in plan.strikes if strike.point is not None]
        epochs = [point.epoch for point in points if point.epoch is not None]
        assert all(7 < epoch < 7 + EPOCHS_PER_START for epoch in epochs)
        assert epochs == sorted(epochs)


def test_executors_are_killed_only_where_they_are_processes() -> None:
    for start in range(50):
        plan = draw_plan(SEED, start, 0, [Fault.EXECUTOR, Fault.DRIVER])
        if not plan.cluster:
            assert {strike.fault for strike in plan.strikes} == {Fault.DRIVER}


def test_a_job_without_steps_is_struck_at_any_time() -> None:
    plan = draw_plan(SEED, 0, 0, list(Fault), steps=False)
    assert [strike.point for strike in plan.strikes] == [None] * len(plan.strikes)


# How it is judged


def test_everything_once_is_good() -> None:
    judged = result()
    judged.judge(ONCE, ONCE)
    assert judged.good


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Counter({(0, 0): 1}), "lost"),
        (Counter({(0, 0): 1, (0, 1): 2}), "duplicated"),
        (Counter({(0, 0): 1, (0, 1): 1, (5, 5): 1}), "phantom"),
    ],
)
def test_what_is_wrong_is_counted(found: Rows, wrong: str) -> None:
    judged = result()
    judged.judge(found, ONCE)
    assert not judged.good
    assert {name: judged.to_json()[name] for name in ("lost", "duplicated", "phantom")} == {
        "lost": 0,
        "duplicated": 0,
        "phantom": 0,
        wrong: 1,
    }


def test_what_is_left_behind_or_was_seen_is_not_good() -> None:
    for wrong in (
        {"pending": ["a"]},
        {"unfinished": [3]},
        {"violations": ["1 rows are there twice"]},
        {"torn": 1},
    ):
        judged = Result("files", SEED, "exactly_once", **wrong)
        assert not judged.good, wrong


def test_a_recovery_lasts_until_new_rows_are_seen() -> None:
    measured = result()
    strike = Strike(Fault.DRIVER, None, 0.0)
    measured.strikes = [(10.0, strike), (11.0, strike), (50.0, strike)]
    measured.measure_recoveries([(5.0, 100), (9.0, 200), (14.5, 300)])
    assert measured.recoveries == [4.5, 3.5]  # after the last fault there were no more rows


def test_the_page_tells_what_was_measured() -> None:
    good = result()
    good.strikes = [(0.0, Strike(Fault.CUT, CrashPoint.parse("after-decide@3"), 0.0))]
    bad = Result("redis", SEED, "exactly_once", violations=["2 rows were there and are gone"])
    page = render([good.to_json(), bad.to_json()])
    assert f"seed {SEED}, 1 faults: **failed**" in page
    assert "| connections cut | 1 | 0 | 1 |" in page
    assert "| 4 decide | 1 | 0 | 1 |" in page
    assert "passed" in render([good.to_json()])


def test_what_is_kept_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[tuple[str, int, int]] = []

    def run(sink: str, faults: int, seed: int, guarantee: str) -> Result:
        runs.append((sink, faults, seed))
        return Result(sink, seed, guarantee, lost=1)

    monkeypatch.setattr(command, "torment", run)
    given = ["--sink", "files", "--results", str(tmp_path / "kept"), "--json"]
    said = []
    for seed in (1, 1, 2):
        assert main([*given, "--faults", "3", "--seed", str(seed)]) == 1
        said.append(json.loads(capsys.readouterr().out))
    assert runs == [("files", 3, 1), ("files", 3, 2)]
    assert said[0] == said[1]
    assert [found["lost"] for found in said] == [1, 1, 1]


def test_a_disk_that_is_filled_and_cleared(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", "48m") as disk:
        if not disk.mounted:
            pytest.skip("this system does not let us mount a tmpfs")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "more").write_bytes(b"x" * 4096)
        disk.clear()
        (tmp_path / "disk" / "more").write_bytes(b"x" * 4096)
    assert not (tmp_path / "disk" / "more").exists()


# The real thing, briefly


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.faults
@pytest.mark.parametrize("sink", ["kafka", pytest.param("files", marks=pytest.mark.long)])
def test_a_few_faults(sink: str) -> None:
    found = torment(sink, 8, SEED, "exactly_once")
    assert found.good, found.to_json()
    assert found.faults == 8


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "guarantee"), [(BUILT_IN, "exactly_once"), ("kafka", "at_least_once")]
)
def test_at_least_once_is_caught(sink: str, guarantee: str) -> None:
    found = torment(sink, 40, SEED, guarantee)
    assert found.duplicated > 0
    assert found.lost == 0


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.faults
@pytest.mark.long
def test_no_guarantee_is_caught() -> None:
    assert torment("postgres-prepared", 60, SEED, "none").lost > 0
