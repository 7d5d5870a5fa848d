"""Contenders side by side: the same rows into one sink after the other, in turns.

Streaming queries run in one Spark session with Spark's own settings. What is measured is what
Spark itself reports of every epoch; the first epochs of a query, in which everything starts, do
not count. What is no query (a program, a library's own loop) is timed from outside, after as many
times that do not count either.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from assent.ledger.ledger import FOLDER, Ledger
from assent.ledger.local import LocalStore
from assent.protocol.record import Decision
from assent.testing.session import start_session
from bench.command import say
from bench.result import Measure

WARM_UP = 2
_COMPILED = 10
_COMPILED_SECONDS = 40.0
"""Epochs of the round that does not count, and how long they go on at least, whoever is fast: by
then Java has compiled most of what counts."""
BATCH_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = str(2**31 - 1)
"""Of that limit, as docs/tuning.md has it. With its default Spark asks for a batch's size after
every row. Only what goes to Python is batched so: Spark's own sinks know nothing of it."""
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""How Spark writes its logs with fewer processes of the system, as docs/tuning.md has it."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
FOR_THROUGHPUT = "-XX:+UseParallelGC"
"""Of Java's garbage collectors the one that docs/tuning.md names. A session has one for all."""
_POLL_SECONDS = 0.2  # the driver has to work for an answer, on the cores that are measured
# Of generated rows: some databases have no earlier time than that of the year 1970.
_START = 1_700_000_000_000
_DEADLINE_SECONDS = 900.0
_GAP_SECONDS = 0.001  # between two epochs no task is at work for some tens of milliseconds
_TUNED = (BATCH_LIMIT, BATCH_ROWS, CHECKPOINT_FILES)
# Where something is, and secrets, are no settings that a reader could learn from.
_PLACES = ("bootstrap.servers", "topic", "url", "user", "password", "dbtable", "path", "prefix")

Options: TypeAlias = Mapping[str, str]
Stage: TypeAlias = Callable[[], AbstractContextManager[Options]]
"""Makes a fresh place to write to, gives the options that lead there, and removes it."""


@dataclass(frozen=True)
class Epoch:
    """One epoch, in milliseconds: the whole, and its parts by name."""

    rows: int
    whole: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        return 1000 * self.rows / self.whole


class Contender(Protocol):
    """What takes part in a comparison."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Options:
        """What it was set to, for the reader of the results."""

    def run(self, epochs: int, warm_up: int) -> list[Epoch]:
        """So many epochs, after those that warm it up."""


Found: TypeAlias = tuple[Contender, list[Epoch]]


def _nowhere() -> AbstractContextManager[Options]:
    return nullcontext({})


@dataclass(frozen=True)
class Query:
    """A streaming query: into a format, or through `save`, a function for `foreachBatch`."""

    name: str
    frame: DataFrame
    options: Options
    format: str = ""
    stage: Stage = _nowhere
    save: Callable[[DataFrame, Options], None] | None = None
    is_tuned: bool = True
    """Whether its session has what docs/tuning.md says of Spark."""

    @property
    def settings(self) -> Options:
        return shown(self.options)

    def untuned(self) -> Query:
        """The same in a session that has nothing of what docs/tuning.md says of Spark."""
        return replace(self, name=f"{self.name}, Spark's own settings", is_tuned=False)

    def run(self, epochs: int, warm_up: int = WARM_UP) -> list[Epoch]:
        folder = Path(tempfile.mkdtemp(prefix="assent-bench-"))
        try:
            with self.stage() as place:
                options = {**self.options, **place}
                with self._session():
                    return self._run(warm_up + epochs, folder / "checkpoint", options)[warm_up:]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _session(self) -> Iterator[None]:
        """A query takes its session's settings when it starts."""
        conf = self.frame.sparkSession.conf
        tuned = {name: conf.get(name, None) for name in _TUNED if not self.is_tuned}
        for name in tuned:
            conf.unset(name)
        try:
            yield
        finally:
            for name, value in tuned.items():
                if value is not None:
                    conf.set(name, value)

    def _run(self, epochs: int, checkpoint: Path, options: Options) -> list[Epoch]:
        writer = self.frame.writeStream.option("checkpointLocation", str(checkpoint))
        save = self.save
        if save is None:
            writer = writer.format(self.format).options(**options)
        else:
            # What comes after the last one is not written: it would only be torn by the stop.
            writer = writer.foreachBatch(
                lambda batch, epoch: save(batch, options) if epoch < epochs else None
            )
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            deadline = time.monotonic() + _DEADLINE_SECONDS + epochs
            while query.isActive and _newest(query.lastProgress) < epochs - 1:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.name} is too slow for {epochs} epochs")
                time.sleep(_POLL_SECONDS)
            failure = query.exception()
            if failure is not None:
                raise failure
            progress = list(query.recentProgress)
            if save is None:
                _wait_between_epochs(query, self.frame.sparkSession)
        finally:
            query.stop()
        steps = _steps(checkpoint)
        found = [_epoch(one, steps.get(one["batchId"], {})) for one in progress]
        return [epoch for epoch in found if epoch.rows][:epochs]


@dataclass(frozen=True)
class Program:
    """Something that is no query. `once` writes everything once and returns the rows."""

    name: str
    settings: Options
    once: Callable[[], int]
    prepare: Callable[[], None] = lambda: None

    def run(self, epochs: int, warm_up: int = WARM_UP) -> list[Epoch]:
        return [self._time() for _ in range(warm_up + epochs)][warm_up:]

    def _time(self) -> Epoch:
        self.prepare()
        started = time.perf_counter()
        rows = self.once()
        return Epoch(rows, 1000 * (time.perf_counter() - started))


@contextmanager
def session(tasks: int, settings: Options | None = None) -> Iterator[SparkSession]:
    """A session as a user would have it: nothing is tuned for the tests, all as documented."""
    plain = {
        BATCH_ROWS: "10000",  # Spark's own, which tests have not
        BATCH_LIMIT: UNLIMITED,
        JAVA_OPTIONS: "",
        "spark.executor.extraJavaOptions": "",
        "spark.driver.memory": "2g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        **(settings or {}),
    }
    started = start_session(f"local[{tasks}]", "bench", plain)
    # Of queries that are stopped Spark would tell at length. Those that fail raise what happened to
    # them.
    started.sparkContext.setLogLevel("OFF")
    try:
        yield started
    finally:
        started.stop()


def generated(spark: SparkSession, rows: int, tasks: int, *columns: str) -> DataFrame:
    """Epochs of so many rows, made in the JVM; columns over `value`, a number, and `timestamp`."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", tasks)
        .option("startTimestamp", _START)
        .load()
        .selectExpr(*columns)
    )


def _wait_between_epochs(query: StreamingQuery, spark: SparkSession) -> None:
    """Return when no task is at work any more, so that the query can be stopped.

    Spark ends the Python process of a task that it has to interrupt, and with the process whatever
    a sink keeps there from epoch to epoch: sessions, producers. In a query that goes on for days
    they are hours old, so they have to outlive the few epochs that are measured in a turn.
    """
    jobs = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # First until there is a job: the next one may be about to begin.
    for is_at_work in (True, False):
        while bool(jobs.getActiveJobsIds()) != is_at_work:
            if not query.isActive or time.monotonic() > deadline:
                return
            time.sleep(_GAP_SECONDS)


def in_turns(
    contenders: Sequence[Contender], epochs: int, rounds: int, *, quick: bool
) -> list[Found]:
    """Every contender in every round; each round begins with another one.

    A round before them does not count: Java compiles what it has seen often, and whoever came
    first would pay for that. A quick run, which measures nothing, does without any warm-up.
    """
    if not quick:
        for contender in contenders:
            say(f"  warm-up: {contender.name}")
            enough = time.monotonic() + _COMPILED_SECONDS
            while time.monotonic() < enough:
                contender.run(_COMPILED, 0)
    found: list[Found] = [(contender, []) for contender in contenders]
    for turn in range(rounds):
        for step in range(len(contenders)):
            contender, taken = found[(turn + step) % len(contenders)]
            say(f"  round {turn + 1} of {rounds}: {contender.name}")
            taken += contender.run(epochs, 0 if quick else WARM_UP)
    return found


def rates(group: str, found: Sequence[Found]) -> list[Measure]:
    """Rows per second of every contender."""
    return [
        Measure.of(
            group,
            contender.name,
            "rows/s",
            [epoch.rows_per_second for epoch in epochs],
            contender.settings,
        )
        for contender, epochs in found
    ]


def shown(options: Options) -> dict[str, str]:
    """Of the options those that are settings."""
    return {
        name: value
        for name, value in options.items()
        if not any(name.lower().endswith(place) for place in _PLACES)
    }


def _newest(progress: Any) -> int:
    return -1 if progress is None else int(progress["batchId"])


def _epoch(progress: Any, steps: Mapping[str, float]) -> Epoch:
    parts = {name: float(value) for name, value in progress["durationMs"].items()}
    return Epoch(int(progress["numInputRows"]), parts["triggerExecution"], {**parts, **steps})


def _steps(checkpoint: Path) -> dict[int, dict[str, float]]:
    """Milliseconds of Assent's own steps, by epoch, as its ledger keeps them; of the newest."""
    if not (checkpoint / FOLDER).is_dir():
        return {}
    ledger = Ledger(LocalStore(str(checkpoint / FOLDER)))
    steps: dict[int, dict[str, float]] = {}
    for record in map(ledger.read, ledger.record_keys()):
        if not isinstance(record, Decision):
            continue
        statistics: Any = record.statistics
        steps.setdefault(record.epoch, {}).update(_milliseconds(statistics["seconds"]))
        previous = dict(statistics["previous"])
        if previous:
            steps.setdefault(previous.pop("epoch"), {}).update(_milliseconds(previous))
    return steps


def _milliseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"assent {step}": 1000 * value for step, value in seconds.items()}
