"""Kafka to Spark to Kafka under SIGKILL: of the driver, executors, workers and brokers.

A `read_committed` reader watches the sink's topic through all of it and sees each row once; in
the end Spark's own Kafka source, which no sink uses, reads the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_group import ConsumerGroup
from assent.testing.crash import CrashPoint
from assent.testing.kafka import Broker, KafkaCluster
from assent.testing.process import DriverProcess, ProcessKind
from assent.testing.spark_cluster import SparkCluster
from tests.kafka_pipeline import ROWS_PER_EPOCH, SECONDS, Pipeline
from tests.plugins.kafka import require_kafka
from tests.test_kills import EVERY_STEP

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# One in each epoch, so that what happens at one step is over when the next is reached. Planning
# does not know the epoch: it is counted.
STEPS = [
    "before-recover@*#2",
    "after-recover@*#3",
    "before-begin@3/0",
    "after-begin@4/1",
    "before-write@5/0",
    "during-write@6/0",
    "before-pre-commit@7/1",
    "after-pre-commit@8/0",
    "before-decide@9",
    "after-decide@10",
    "before-commit@11",
    "during-commit@12",
    "after-commit@13",
    "before-complete@14",
    "after-complete@15",
]
PAUSE_SECONDS = 2.0


def positions(kafka: KafkaCluster, group: str) -> list[int]:
    brokers = Brokers(kafka.settings())
    try:
        found = ConsumerGroup(brokers, group).positions()
    finally:
        brokers.close()
    return [found[place].offset for place in sorted(found)]


@pytest.mark.parametrize(
    "front_end", ["datasource", pytest.param("foreachbatch", marks=pytest.mark.faults)]
)
def test_killed_after_the_decision_and_offsets_follow(
    kafka: KafkaCluster, front_end: str, tmp_path: Path
) -> None:
    """Also R13: no offset is published of an epoch that is not complete."""
    group = f"lag-{front_end}-{tmp_path.name}"
    pipeline = Pipeline(kafka, tmp_path, front_end, epochs=3, more=["--commit-offsets", group])
    with pipeline.reader() as reader:
        with pipeline.start("after-decide@1") as driver:
            driver.await_marker(SECONDS)
            driver.kill_all()
        assert positions(kafka, group) == [ROWS_PER_EPOCH // 2] * 2
        with pipeline.start() as driver:
            driver.await_exit(SECONDS)
        assert positions(kafka, group) == [3 * ROWS_PER_EPOCH // 2] * 2
        pipeline.assert_exactly_once(reader)


@pytest.mark.faults
def test_the_driver_killed_at_every_step(kafka: KafkaCluster, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path, "datasource", epochs=15)
    with pipeline.reader() as reader:
        pipeline.kill_at(EVERY_STEP)
        pipeline.assert_exactly_once(reader)


@pytest.mark.faults
def test_the_driver_killed_in_foreach_batch(kafka: KafkaCluster, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path, "foreachbatch", epochs=6)
    with pipeline.reader() as reader:
        pipeline.kill_at(["after-pre-commit@1/0", "before-decide@2", "during-commit@3"])
        pipeline.assert_exactly_once(reader)


@pytest.mark.faults
@pytest.mark.parametrize("kind", [ProcessKind.EXECUTOR, ProcessKind.WORKER])
def test_executors_and_workers_killed_at_every_step(
    kafka: KafkaCluster, kind: ProcessKind, tmp_path: Path
) -> None:
    """The one that stands at the step; where the driver does, any of those that run tasks."""
    pipeline = Pipeline(
        kafka, tmp_path, "datasource", epochs=17, more=["--master", "local-cluster[2,1,1024]"]
    )

    def kill(driver: DriverProcess, standing: int) -> None:
        processes = driver.processes()
        executors = {each.pid for each in processes if each.kind is ProcessKind.EXECUTOR}
        victims = [
            each
            for each in processes
            if each.kind is kind and executors & {each.pid, *driver.ancestors(each.pid)}
        ]
        line = {standing, *driver.ancestors(standing)}
        chosen = [each for each in victims if each.pid in line] or victims
        driver.kill(chosen[0])

    with pipeline.reader() as reader:
        assert pipeline.disturb_at(STEPS, kill) == 1  # Spark itself goes on
        pipeline.assert_exactly_once(reader)


@pytest.mark.faults
def test_the_drivers_own_python_processes_killed(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Those that plan and commit: the query ends with an error, and goes on when started again."""
    pipeline = Pipeline(kafka, tmp_path, "datasource", epochs=5)
    points = ["after-recover@*#2", "after-decide@2", "during-commit@3"]

    def kill(driver: DriverProcess, standing: int) -> None:
        [victim] = [each for each in driver.processes() if each.pid == standing]
        driver.kill(victim)

    with pipeline.reader() as reader:
        assert pipeline.disturb_at(points, kill) == 1 + len(points)
        pipeline.assert_exactly_once(reader)


@pytest.mark.faults
def test_speculation_at_every_step_of_a_task(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A task that stands is overtaken by its copy, and goes on when its epoch is committed."""
    steps = [step for step in STEPS if "/" in step]
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "1g",
    }
    chosen = [word for name, value in settings.items() for word in ("--setting", f"{name}={value}")]
    with SparkCluster() as cluster:
        pipeline = Pipeline(
            kafka, tmp_path, "datasource", epochs=10, more=["--master", cluster.url, *chosen]
        )
        with pipeline.reader() as reader:
            reached = iter(steps)

            def overtake(driver: DriverProcess, standing: int) -> None:
                epoch = CrashPoint.parse(next(reached)).epoch
                assert epoch is not None
                reader.await_count((epoch + 1) * ROWS_PER_EPOCH)

            assert pipeline.disturb_at(steps, overtake) == 1
            pipeline.assert_exactly_once(reader)


@pytest.fixture
def broker() -> Iterator[tuple[KafkaCluster, Broker]]:
    """A broker of the test's own, which may die."""
    with require_kafka() as cluster:
        yield cluster, cluster.broker(1)


@pytest.mark.faults
@pytest.mark.parametrize("how", ["killed", "paused", "restarted"])
def test_the_broker_fails_at_every_step(
    broker: tuple[KafkaCluster, Broker], how: str, tmp_path: Path
) -> None:
    cluster, node = broker
    pipeline = Pipeline(cluster, tmp_path, "datasource", epochs=17)

    def fail(driver: DriverProcess, standing: int) -> None:
        if how == "killed":
            node.kill()
        elif how == "paused":
            node.pause()
        else:
            node.stop()

    def recover() -> None:
        if how == "paused":
            time.sleep(PAUSE_SECONDS)  # the fault itself: the job runs into the silence
            node.resume()
        else:
            node.start()

    with pipeline.reader() as reader:
        pipeline.disturb_at(STEPS, fail, recover)
        node.wait_until_ready()
        pipeline.assert_exactly_once(reader)
