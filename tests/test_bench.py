"""The benchmarks work: each in a reduced run. Nothing here says how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from bench.__main__ import BENCHES, Kept
from bench.plot import plot
from bench.query import Query, generated
from bench.report import report
from bench.result import FORMAT, Measure, Result, find, quantile, ratio
from bench.target import ALL, GROWTH, POSTGRES_COPY, SMALL_P50, Outcome
from bench.watcher import Watcher

ROOT = Path(__file__).parent.parent
SECONDS = 180.0


def result(*outcomes: Outcome) -> Result:
    return Result(
        "postgres_sink",
        "PostgreSQL",
        "All had the same server.",
        {"rows": 1000, "bytes": [100, 1000]},
        (
            Measure.of(
                "one task", "assent, exactly_once", "rows/s", [400, 100, 200, 300], {"a": "1"}
            ),
            Measure.of("one task", "psql \\copy", "rows/s", [500.0]),
            Measure.of("two tasks", "assent, exactly_once", "rows/s", [1e6, 2e6]),
        ),
        outcomes,
        ("something was left out",),
        12.3,
        0.5,
        "2026-11-16",
        "a machine of 2 cores",
        "0.1 (abcdef)",
    )


def whole(found: Result, **more: Any) -> dict[str, Any]:
    text = json.dumps(
        {
            "format": FORMAT,
            "quick": False,
            "versions": {"Kafka": "4.3.1"},
            "failed": [],
            "benches": [found.to_json()],
            **more,
        }
    )
    value: dict[str, Any] = json.loads(text)
    return value


def test_samples_are_summed_up() -> None:
    measure = Measure.of("group", "name", "ms", [5, 1, 2, 3, 4])
    assert (measure.n, measure.median) == (5, 3)
    assert (measure.lower, measure.upper) == (2, 4)
    assert (measure.least, measure.most) == (1, 5)
    assert measure.p99 == pytest.approx(4.96)
    assert quantile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="nothing was measured"):
        Measure.of("group", "name", "ms", [])


def test_a_result_survives_json() -> None:
    found = result(Outcome(POSTGRES_COPY, 0.95))
    read = Result.from_json(json.loads(json.dumps(found.to_json())))
    assert read == found
    assert find(read.measures, "one task", "psql \\copy").median == 500
    assert ratio(read.measures, "one task", "assent, exactly_once", "psql \\copy") == 0.5


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (POSTGRES_COPY, 0.8999, "NOT met"),
        (POSTGRES_COPY, 0.9, "met"),
        (POSTGRES_COPY, 1.2, "aim met"),
        (SMALL_P50, 40.1, "NOT met"),
        (SMALL_P50, 40.0, "met"),
        (SMALL_P50, -3.0, "aim met"),
        (GROWTH, 1.11, "NOT met"),
    ],
)
def test_targets_are_computed(target: Any, value: float, verdict: str) -> None:
    assert Outcome(target, value).verdict == verdict


def test_a_verdict_in_the_file_is_not_believed() -> None:
    found = whole(result(Outcome(POSTGRES_COPY, 0.5)))
    found["benches"][0]["outcomes"][0].update(met=True, aimMet=True)
    assert "| 0.5 | NOT met |" in report(found)


def test_the_page_holds_every_target_and_measure() -> None:
    page = report(whole(result(Outcome(POSTGRES_COPY, 1.0, "text"))), "performance")
    assert "| PostgreSQL, one task ÷ psql's \\copy, text | ≥ 0.9 | ≥ 1.2 | 1 | met |" in page
    assert page.count("not measured") == len(ALL) - 1
    assert "| assent, exactly_once | 250 | 175 to 325 | 397 | 4 |" in page
    assert "| assent, exactly_once | 1,500,000 | 1,250,000 to 1,750,000 |" in page
    assert "| assent, exactly_once | `a=1` |" in page
    assert "rows 1,000, bytes 100 and 1,000" in page
    assert "something was left out" in page
    assert "All had the same server." in page
    assert "![PostgreSQL](performance/postgres_sink.svg)" in page
    assert "on 2026-11-16, with 0.1 (abcdef), on a machine of 2 cores, whose load" in page
    assert "mean nothing" not in page


def test_the_page_says_what_is_wrong_with_it() -> None:
    page = report(whole(result(), quick=True, failed=["growth"]))
    assert "These figures mean nothing" in page
    assert "`bench.growth` failed" in page
    with pytest.raises(ValueError, match="format 99"):
        report(whole(result(), format=99))


def test_a_plot_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    first, again = (plot(result(), tmp_path / name) for name in ("first", "again"))
    assert first is not None
    assert again is not None
    assert first.read_text() == again.read_text()
    assert "psql" in first.read_text()
    assert plot(replace(result(), measures=()), tmp_path) is None
    assert plot(result(), tmp_path, "png") == tmp_path / "postgres_sink.png"


def test_the_speed_of_a_copy_is_counted_from_commit_to_commit() -> None:
    steps = [(0.0, 0), (10.0, 100), (11.0, 550), (11.5, 550), (14.0, 1000), (99.0, 1100)]
    assert Watcher("", "", 2, steps).rows_per_second(500, 1000) == 450 / 3
    at_once = [(0.0, 0), (10.0, 0), (14.0, 1000)]
    assert Watcher("", "", 2, at_once).rows_per_second(500, 1000) == 250


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    first = Kept.read(file, quick=False)
    first.add("postgres_sink", result().to_json())
    first.add("growth", None)
    again = Kept.read(file, quick=False)
    assert list(again.benches) == ["postgres_sink"]
    assert again.failed == []
    assert "`bench.growth` failed" in report(json.loads(file.read_text()))
    again.add("kafka_large", replace(result(), bench="kafka_large").to_json())
    found = json.loads(file.read_text())
    assert [bench["bench"] for bench in found["benches"]] == ["kafka_large", "postgres_sink"]
    again.add("postgres_sink", None)
    assert list(Kept.read(file, quick=False).benches) == ["kafka_large"]


def test_results_that_cannot_stand_side_by_side_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    Kept.read(file, quick=False).add("postgres_sink", result().to_json())
    with pytest.raises(ValueError, match="results of another quick"):
        Kept.read(file, quick=True)
    file.write_text(json.dumps(whole(result(), format=1)))
    with pytest.raises(ValueError, match="results of another format"):
        Kept.read(file, quick=False)


@pytest.mark.spark
def test_a_query_is_stopped_between_two_epochs(session: SparkSession, tmp_path: Path) -> None:
    """A task that is torn takes its process along, and what a sink keeps there between epochs."""

    def leave_a_trace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (tmp_path / str(context.getLocalProperty("spark.jobGroup.id"))).touch()
        for batch in batches:
            time.sleep(0.5)  # most of an epoch's time, in which a stop must not fall
            yield batch

    frame = generated(session, 10, 1, "value").mapInArrow(leave_a_trace, "value bigint")
    for _ in range(3):
        assert len(Query("traces", frame, {}, "noop").run(2, warm_up=0)) == 2
    tracker = session.sparkContext.statusTracker()
    torn = 0
    for run in tmp_path.iterdir():
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(run.name)]
        assert len(jobs) >= 2
        torn += any(job is not None and job.status != "SUCCEEDED" for job in jobs)
    # Spark tells of a job a moment after it has begun, which may once come too late.
    assert torn <= 1


def test_an_unknown_benchmark_is_refused() -> None:
    done = run("bench", "kafka_lage")
    assert done.returncode == 2
    assert "no benchmark kafka_lage" in done.stderr
    assert "kafka_large" in done.stderr


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.parametrize("name", BENCHES)
def test_a_reduced_run_works(name: str, tmp_path: Path) -> None:
    """Flink and Quix Streams are left out, being large to download."""
    file = tmp_path / "result.json"
    done = run(f"bench.{name}", "--quick", "--json", str(file))
    assert done.returncode == 0, done.stderr[-6000:]
    found = Result.from_json(json.loads(file.read_text()))
    assert found.bench == name
    assert found.fairness
    assert found.measures
    assert not found.notes
    assert all(measure.most > 0 for measure in found.measures if measure.unit == "rows/s")
    assert found.title in report(whole(found, quick=True))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=ROOT,
    )
