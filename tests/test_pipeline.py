"""Real Spark into real stores under SIGKILL: of the driver, of executors and workers, of servers.

A reader watches the output through all of it. Afterwards: every row once, nothing pending.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from assent.protocol.name import TransactionName
from assent.protocol.record import Amendment
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_group import ConsumerGroup
from assent.spark.assembly import open_checkpoint
from assent.testing.crash import CrashPoint
from assent.testing.kafka import KafkaCluster
from assent.testing.pipeline import ROWS_PER_EPOCH, SECONDS, Pipeline, from_kafka, scripted
from assent.testing.postgres import Postgres
from assent.testing.process import DriverProcess, ProcessKind
from assent.testing.reader import Rows
from assent.testing.redis import RedisServer
from assent.testing.spark_cluster import SparkCluster
from assent.testing.stage import FilesStage, Stage
from assent.testing.stage_hbase import HBaseStage
from assent.testing.stage_kafka import KafkaStage
from assent.testing.stage_mysql import MySqlStage
from assent.testing.stage_postgres import PostgresStage
from assent.testing.stage_redis import RedisStage
from tests.plugins.hbase import require_hbase
from tests.plugins.kafka import require_kafka
from tests.plugins.mysql import require_mysql
from tests.plugins.postgres import require_postgres
from tests.plugins.redis import require_redis
from tests.test_kills import EVERY_STEP

pytestmark = pytest.mark.spark

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

# What Spark's own Kafka source reads, committed alone: a client that no sink uses.
_SPARK_READS = """
import json, sys
from assent.testing.session import start_session
from assent.testing.spark_kafka import connector_jars

session = start_session("local[2]", "check", {"spark.jars": ",".join(map(str, connector_jars()))})
rows = (
    session.read.format("kafka")
    .option("kafka.bootstrap.servers", sys.argv[1])
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", sys.argv[2])
    .load()
    .selectExpr("get_json_object(string(value), '$.partition') AS p",
                "get_json_object(string(value), '$.offset') AS o")
    .groupBy("p", "o").count().collect()
)
print(json.dumps([[int(row.p), int(row.o), row["count"]] for row in rows]))
session.stop()
"""


def spark_reads(kafka: KafkaCluster, topic: str) -> Rows:
    command = [sys.executable, "-c", _SPARK_READS, kafka.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return Counter({(partition, offset): times for partition, offset, times in found})


def positions(kafka: KafkaCluster, group: str) -> list[int]:
    brokers = Brokers(kafka.settings())
    try:
        found = ConsumerGroup(brokers, group).positions()
    finally:
        brokers.close()
    return [found[place].offset for place in sorted(found)]


# Kafka to Spark to Kafka


@pytest.mark.kafka
@pytest.mark.parametrize(
    "front_end", ["datasource", pytest.param("foreachbatch", marks=pytest.mark.faults)]
)
def test_killed_after_the_decision_and_offsets_follow(
    kafka: KafkaCluster, front_end: str, tmp_path: Path
) -> None:
    """Also R13: no offset is published of an epoch that is not complete."""
    group = f"lag-{front_end}-{tmp_path.name}"
    pipeline = Pipeline(
        tmp_path,
        KafkaStage(kafka),
        from_kafka(kafka, epochs=3),
        front_end,
        more=["--commit-offsets", group],
    )
    with pipeline.watch() as watch:
        with pipeline.start("after-decide@1") as driver:
            driver.await_marker(SECONDS)
            driver.kill_all()
        assert positions(kafka, group) == [ROWS_PER_EPOCH // 2] * 2
        pipeline.finish()
        assert positions(kafka, group) == [3 * ROWS_PER_EPOCH // 2] * 2
        pipeline.assert_exactly_once(watch)


@pytest.mark.kafka
@pytest.mark.faults
def test_kafka_to_kafka_with_the_driver_killed_at_every_step(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, KafkaStage(kafka), from_kafka(kafka, epochs=15))
    with pipeline.watch() as watch:
        pipeline.kill_at(EVERY_STEP)
        pipeline.assert_exactly_once(watch)
    assert spark_reads(kafka, pipeline.trial) == pipeline.expected


@pytest.mark.kafka
@pytest.mark.faults
def test_kafka_to_kafka_with_the_drivers_own_python_processes_killed(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Those that plan and commit: the query ends with an error, and goes on when started again."""
    pipeline = Pipeline(tmp_path, KafkaStage(kafka), from_kafka(kafka, epochs=5))
    points = ["after-recover@*#2", "after-decide@2", "during-commit@3"]

    def kill(driver: DriverProcess, standing: int) -> None:
        [victim] = [each for each in driver.processes() if each.pid == standing]
        driver.kill(victim)

    with pipeline.watch() as watch:
        assert pipeline.disturb_at(points, kill) == 1 + len(points)
        pipeline.assert_exactly_once(watch)


@pytest.mark.kafka
@pytest.mark.faults
@pytest.mark.long
def test_kafka_to_kafka_with_speculation_at_every_step_of_a_task(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
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
        views = from_kafka(kafka, epochs=10)
        pipeline = Pipeline(
            tmp_path, KafkaStage(kafka), views, more=["--master", cluster.url, *chosen]
        )
        with pipeline.watch() as watch:
            reached = iter(steps)

            def overtake(driver: DriverProcess, standing: int) -> None:
                epoch = CrashPoint.parse(next(reached)).epoch
                assert epoch is not None
                watch.await_count((epoch + 1) * ROWS_PER_EPOCH)

            assert pipeline.disturb_at(steps, overtake) == 1
            # The last one overtaken may have begun when nobody swept any more.
            views.add(epochs=1)
            pipeline.finish()
            pipeline.assert_exactly_once(watch)


# An epoch of which a part is missing


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.faults
def test_what_is_missing_of_an_epoch_is_written_again_whichever_task_gets_it(
    kafka: KafkaCluster, postgres: Postgres, tmp_path: Path
) -> None:
    """An administrator commits one transaction of a decided epoch and rolls the other back.

    Spark's Kafka source hands the partitions of this topic to its tasks in one order when an
    epoch is new, and in another when it is replayed: it depends on the topic's name. A task that
    wrote what is there already would fail for the table's key.
    """
    stage = PostgresStage(postgres, "prepared")
    given = from_kafka(kafka, epochs=3, topic="app-topic-fda24494d9316ee0")
    pipeline = Pipeline(tmp_path, stage, given)
    postgres.run(
        f'CREATE TABLE "{pipeline.trial}".views ("partition" int, "offset" bigint, app text, '
        'page text, "user" text, viewed_at timestamptz, PRIMARY KEY ("partition", "offset"))'
    )
    with pipeline.watch() as watch:
        with pipeline.start("after-decide@1") as driver:
            driver.await_marker(SECONDS)
            driver.kill_all()
        one, other = stage.pending(pipeline.trial)
        postgres.run(f"COMMIT PREPARED '{one}'")
        postgres.run(f"ROLLBACK PREPARED '{other}'")
        pipeline.finish()
        pipeline.assert_exactly_once(watch)
    ledger, _ = open_checkpoint(str(pipeline.checkpoint))
    records = map(ledger.read, ledger.record_keys())
    [amendment] = [record for record in records if isinstance(record, Amendment)]
    [share] = amendment.shares
    by = TransactionName.parse(share.prepared[0].handle.name.partition(".")[0])
    assert by.partition != share.partition, "the order was the same: it shows nothing"


# Several sinks in one epoch


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.faults
def test_one_epoch_into_kafka_postgres_and_files_killed_between_their_commits(
    kafka: KafkaCluster, postgres: Postgres, tmp_path: Path
) -> None:
    """One pass over the data and one decision: after recovery all of them have it (R17)."""
    others: list[tuple[Stage, str]] = [
        (PostgresStage(postgres, "prepared"), "both_prepared"),
        (PostgresStage(postgres, "staged"), "both_staged"),
        (FilesStage(tmp_path), "files"),
    ]
    more = [word for stage, trial in others for word in stage.prepare(trial)]
    pipeline = Pipeline(tmp_path, KafkaStage(kafka), scripted(epochs=6), "foreachbatch", more)
    # Two tasks and four sinks: eight handles, and then each sink is published.
    points = ["during-commit@1#1", "during-commit@2#3", "during-commit@3#7", "during-commit@4#9"]
    with pipeline.watch() as watch:
        pipeline.kill_at(points)
        pipeline.assert_exactly_once(watch)
    for stage, trial in others:
        assert stage.rows(trial) == pipeline.expected, trial
        assert stage.pending(trial) == [], trial


# Any sink


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage with servers of the test's own, which may die."""
    sink, _, mode = request.param.partition(" ")
    if sink == "kafka":
        with require_kafka() as cluster:
            yield KafkaStage(cluster)
    elif sink == "hbase":
        with require_hbase() as hbase:
            yield HBaseStage(hbase)
    elif sink in ("mariadb", "mysql"):
        with require_mysql(sink) as mysql:
            yield MySqlStage(mysql, mode)
    elif sink == "postgres":
        with require_postgres() as postgres:
            yield PostgresStage(postgres, mode)
    else:
        with require_redis(RedisServer) as redis:
            yield RedisStage(redis)


def each(first: Sequence[str], then: Sequence[str] = (), *more: str) -> list[ParameterSet]:
    """Parameters for these sinks, and for those whose turn is in the longer proof alone."""
    found = []
    for sink in (*first, *then):
        name = sink.split()[0]
        marks = [getattr(pytest.mark, "mysql" if name == "mariadb" else name)]
        found.append(
            pytest.param(sink, *more, marks=marks if sink in first else [*marks, pytest.mark.long])
        )
    return found


SOON = ["postgres prepared", "postgres staged", "mariadb prepared", "redis"]
LATER = ["mariadb staged", "mysql prepared", "hbase"]  # HBase takes as long as all others
ALL = SOON + LATER


@pytest.mark.faults
@pytest.mark.parametrize("stage", each(SOON, LATER), indirect=True)
def test_a_task_or_the_server_killed_at_every_step(stage: Stage, tmp_path: Path) -> None:
    """Every sink, every step, once: the task that stands there, or the server if the driver does.

    The longer proof does each to all of them.
    """
    # Four attempts for each task: a job that has to be started again takes longer.
    pipeline = Pipeline(tmp_path, stage, scripted(epochs=17), more=["--master", "local[2,4]"])
    [server] = stage.servers
    reached = iter(STEPS)
    down = False

    def kill(driver: DriverProcess, standing: int) -> None:
        nonlocal down
        down = "/" not in next(reached)
        if down:
            server.kill()
        else:
            for process in driver.processes():
                if process.pid == standing:  # unless the query is failing already
                    driver.kill(process)

    def restore() -> None:
        if down:
            server.start()

    with pipeline.watch() as watch:
        pipeline.disturb_at(STEPS, kill, restore)
        pipeline.assert_exactly_once(watch)


@pytest.mark.faults
@pytest.mark.parametrize("stage", each([], ALL), indirect=True)
def test_the_driver_killed_at_every_step(stage: Stage, tmp_path: Path) -> None:
    points = [
        "after-recover@*#2",
        "after-begin@2/1",
        "during-write@3/0",
        "after-pre-commit@4/1",
        "before-decide@5",
        "during-commit@6",
        "during-recover@6",
        "after-complete@7",
    ]
    pipeline = Pipeline(tmp_path, stage, scripted(epochs=9))
    with pipeline.watch() as watch:
        pipeline.kill_at(points)
        pipeline.assert_exactly_once(watch)


@pytest.mark.faults
@pytest.mark.parametrize("stage", each(["kafka"], ["postgres staged"]), indirect=True)
def test_the_driver_killed_in_foreach_batch(stage: Stage, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, stage, scripted(epochs=5), "foreachbatch")
    with pipeline.watch() as watch:
        pipeline.kill_at(["after-pre-commit@1/0", "before-decide@2", "during-commit@3"])
        pipeline.assert_exactly_once(watch)


@pytest.mark.faults
@pytest.mark.parametrize("kind", [ProcessKind.EXECUTOR, ProcessKind.WORKER])
@pytest.mark.parametrize("stage", each(["kafka"], ALL), indirect=True)
def test_executors_and_workers_killed_at_every_step(
    stage: Stage, kind: ProcessKind, tmp_path: Path
) -> None:
    """The one that stands at the step; where the driver does, any of those that run tasks."""
    pipeline = Pipeline(
        tmp_path, stage, scripted(epochs=17), more=["--master", "local-cluster[2,1,1024]"]
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

    with pipeline.watch() as watch:
        assert pipeline.disturb_at(STEPS, kill) == 1  # Spark itself goes on
        pipeline.assert_exactly_once(watch)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("stage", "how"),
    [
        *each(["kafka"], ALL, "killed"),
        *each([], ["kafka"], "paused"),
    ],
    indirect=["stage"],
)
def test_the_server_fails_at_every_step(stage: Stage, how: str, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, stage, scripted(epochs=17))
    [server] = stage.servers

    def fail(driver: DriverProcess, standing: int) -> None:
        server.kill() if how == "killed" else server.pause()

    def recover() -> None:
        if how == "paused":
            time.sleep(PAUSE_SECONDS)  # the fault itself: the job runs into the silence
            server.resume()
        else:
            server.start()

    with pipeline.watch() as watch:
        pipeline.disturb_at(STEPS, fail, recover)
        pipeline.assert_exactly_once(watch)
