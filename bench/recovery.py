"""Recovery: `python -m bench.recovery [--quick]`.

A query left so many transactions pending and was killed; how long does the next start take until
all of them are settled? Decided: the epoch's decision is durable, and nothing of it committed: all
are committed. Dead: nothing was decided, and all are aborted. On a real Kafka, and on a real
PostgreSQL with prepared transactions.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.name import nonce
from assent.protocol.participant import Participant
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, When, no_trace
from assent.protocol.vote import Vote
from assent.sinks.kafka import KafkaSink
from assent.sinks.postgres import PostgresSink
from assent.testing.memory import MemoryCheckpoint
from assent.testing.postgres import Postgres
from assent.testing.query import Killed
from bench import command, target
from bench.broker import broker, fresh_topic
from bench.result import Measure, Result
from bench.target import Outcome
from bench.watcher import Watcher

PARTITIONS = 4
DECIDED, DEAD = "decided", "dead"
MANY = 1_000
FAIRNESS = (
    "Nothing is compared. The clock runs from the making of a new coordinator, with connections of "
    "its own, until it has planned the next epoch, which it does only when every transaction is "
    "settled. The store's answers are checked: nothing is pending afterwards, and what was decided "
    "is there. The ledger is on the local disk, with every flush, and PostgreSQL flushes too."
)
SIZES = (
    command.Size("pending", (1, 100, MANY), (1, 20), "transactions that are pending"),
    command.Size("rounds", 5, 1, "how often each is measured"),
)

_BATCH = pa.record_batch({"value": pa.array(["row"])})
# Of producers there is a pool, and of connections a limit.
_WRITERS = 8
_SERVER = {"fsync": "on", "max_prepared_transactions": str(2 * MANY)}


def measure(options: argparse.Namespace) -> Result:
    samples: dict[tuple[str, str], list[float]] = {}
    with broker() as kafka, Postgres(settings=_SERVER) as server:

        def run(group: str, make: Callable[[], Sink[Any]], rows: Callable[[], int]) -> None:
            for count in options.pending:
                for how in (DECIDED, DEAD):
                    command.say(f"  {group}: {count:,} {how}")
                    before = rows()
                    seconds = _recover(make, count, decided=how == DECIDED)
                    expected = count if how == DECIDED else 0
                    _await(rows, before + expected)
                    key = (group, f"{count:,} {how}")
                    samples.setdefault(key, []).append(seconds)

        for _ in range(options.rounds):
            with fresh_topic(kafka, PARTITIONS) as topic:
                run(
                    "Kafka",
                    partial(KafkaSink, kafka.settings(), topic),
                    Watcher(kafka.bootstrap_servers, topic, PARTITIONS).count,
                )
            table = f"rows_{nonce()}"
            server.run(f"CREATE TABLE {table} (value text)")
            run(
                "PostgreSQL",
                partial(_postgres, server, table),
                partial(_count, server, table),
            )
    measures = tuple(
        Measure.of(group, name, "s", found) for (group, name), found in samples.items()
    )
    outcomes = tuple(
        Outcome(target.RECOVERY, found.median, f"{found.group}, {found.name}")
        for found in measures
        if found.name.startswith(f"{MANY:,} ")
    )
    return Result("recovery", "Recovery", FAIRNESS, {}, measures, outcomes)


def _postgres(server: Postgres, table: str) -> PostgresSink:
    options = server.options(table)
    login = (options["user"], options["password"])
    return PostgresSink(options["url"], table, *login, commit_mode="prepared")


def _count(server: Postgres, table: str) -> int:
    return int(server.rows(f"SELECT count(*) FROM {table}")[0][0])


def _recover(make: Callable[[], Sink[Any]], count: int, *, decided: bool) -> float:
    """Leave so many transactions behind; seconds until a new driver has settled them."""
    checkpoint = MemoryCheckpoint({0: "digest"})
    with tempfile.TemporaryDirectory(prefix="assent-bench-") as folder:

        def driver(killed_at: Step | None = None) -> Coordinator:
            def trace(moment: Moment) -> None:
                if (moment.when, moment.step) == (When.AFTER, killed_at):
                    raise Killed(str(moment))

            sink = make()
            sink.check(_BATCH.schema)
            return Coordinator(
                Ledger(LocalStore(str(Path(folder, "_assent")))),
                [sink],
                checkpoint,
                trace=no_trace if killed_at is None else trace,
            )

        victim = driver(Step.DECIDE)
        assignment = victim.plan()
        votes = _votes(make, assignment, count)
        if decided:
            try:
                victim.commit(votes, 0)
            except Killed:
                pass
        started = time.perf_counter()
        survivor = driver()
        survivor.plan()
        seconds = time.perf_counter() - started
        identity = assignment.identity
        left = list(survivor.sinks[0].pending(identity))
        if left:
            raise AssertionError(f"{len(left)} transactions are pending after recovery")
    return seconds


def _votes(make: Callable[[], Sink[Any]], assignment: Assignment, count: int) -> Sequence[Vote]:
    """The tasks, several at once, each with a sink as it reaches a task, and one row."""
    pickled = pickle.dumps(make())

    def vote(partition: int) -> Vote:
        participant = Participant([pickle.loads(pickled)], assignment)
        return participant.vote(0, partition, 0, [_BATCH])

    with ThreadPoolExecutor(_WRITERS) as threads:
        return list(threads.map(vote, range(count)))


def _await(rows: Callable[[], int], expected: int) -> None:
    """The markers of a Kafka commit follow it."""
    deadline = time.monotonic() + 60
    while (found := rows()) != expected:
        if time.monotonic() > deadline or found > expected:
            raise AssertionError(f"readers see {found} rows, not {expected}")
        time.sleep(0.05)


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
