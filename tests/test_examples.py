"""The examples run, and the one about residents survives a kill between snapshot and commit."""

from __future__ import annotations

import runpy
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from assent.protocol.name import nonce
from assent.testing.boundaries import DEFAULT_BOUNDARIES
from assent.testing.crash import CrashPoint
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_views import fill
from assent.testing.pageviews import page_views
from assent.testing.postgres import Postgres
from assent.testing.process import DriverProcess
from assent.testing.redis import RedisServer

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parent.parent / "examples"
SECONDS = 120.0


def example(name: str, folder: Path, crash: str | None = None) -> DriverProcess:
    arguments = [str(EXAMPLES / name), "--folder", str(folder / "example")]
    return DriverProcess(
        arguments, folder, crash=None if crash is None else CrashPoint.parse(crash)
    )


@pytest.mark.faults
def test_residents_killed_between_snapshot_and_commit(tmp_path: Path) -> None:
    with example("residents.py", tmp_path, crash="after-decide@2") as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    with example("residents.py", tmp_path) as driver:
        driver.await_exit(SECONDS)
    functions = runpy.run_path(str(EXAMPLES / "residents.py"))
    found = functions["residents"](tmp_path / "example")
    assert found == functions["expected"]()


def test_page_views_per_app(tmp_path: Path) -> None:
    with example("page_views_per_app.py", tmp_path) as driver:
        driver.await_exit(SECONDS)
        assert "20,005" in driver.tail() or "20005" in driver.tail()


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.faults
def test_page_views_from_app_topic_into_redis_and_postgres_killed_and_restarted(
    kafka: KafkaCluster, redis_server: RedisServer, postgres: Postgres, tmp_path: Path
) -> None:
    topic = f"app-topic-{nonce()}"
    kafka.create_topic(topic, partitions=2)
    fill(kafka, topic, DEFAULT_BOUNDARIES[-1])
    command = [
        *(str(EXAMPLES / "app_topic.py"), "--folder", str(tmp_path / "example")),
        *("--brokers", kafka.bootstrap_servers, "--topic", topic),
        *("--redis", redis_server.url, "--postgres", postgres.login_url),
    ]
    for point in ("after-pre-commit@1/0", "after-decide@2", "during-commit@3"):
        with DriverProcess(command, tmp_path, crash=CrashPoint.parse(point)) as driver:
            driver.await_marker(SECONDS)
            driver.kill_all()
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
        assert "20005" in driver.tail()
    expected: Counter[str] = Counter()
    for partition, end in enumerate(DEFAULT_BOUNDARIES[-1]):
        expected.update(page_views(1, partition, 0, end).column("app").to_pylist())
    functions = runpy.run_path(str(EXAMPLES / "app_topic.py"))
    assert functions["in_redis"](redis_server.url) == expected
    assert functions["in_postgres"](postgres.login_url) == expected


@pytest.mark.faults
def test_a_sink_of_ones_own_killed_between_two_commits(tmp_path: Path) -> None:
    with example("custom_sink.py", tmp_path, crash="during-commit@1") as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    done, open_ = (tmp_path / "example" / "views" / name for name in ("done", "open"))
    assert (len(list(done.iterdir())), len(list(open_.iterdir()))) == (3, 1)
    with example("custom_sink.py", tmp_path) as driver:
        driver.await_exit(SECONDS)
    lines = [line for path in done.iterdir() for line in path.read_text().splitlines()]
    assert (len(lines), len(set(lines))) == (sum(DEFAULT_BOUNDARIES[-1]),) * 2
    assert list(open_.iterdir()) == []


@pytest.mark.faults
def test_sqlite_killed_between_two_commits(tmp_path: Path) -> None:
    with example("sqlite_sink.py", tmp_path, crash="during-commit@1") as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    with example("sqlite_sink.py", tmp_path) as driver:
        driver.await_exit(SECONDS)
    with closing(sqlite3.connect(tmp_path / "example" / "views.db")) as database:
        [(rows, distinct)] = database.execute("SELECT count(*), count(DISTINCT row) FROM visible")
        [(left,)] = database.execute("SELECT count(*) FROM staged")
        [(unsettled,)] = database.execute("SELECT count(*) FROM transactions WHERE state = 'open'")
    assert (rows, distinct, left, unsettled) == (sum(DEFAULT_BOUNDARIES[-1]),) * 2 + (0, 0)
