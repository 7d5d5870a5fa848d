"""What an epoch costs as a query grows old, and as it grows wide: `python -m bench.growth`.

Real coordinator, real disk with every flush, and a sink that costs nothing. Two things are
measured on ledgers of different age: a start (a new process opens the ledger, closes the term of
the run before, takes its own and plans), and one epoch (plan, one task with one row, decide,
commit, complete). Of epochs with many tasks, what is measured is the coordinator's part: the tasks
themselves run elsewhere, and in parallel. All take turns, so that whatever else the machine does
hits all of them.

The histories are written by the ledger itself, decision by decision and pruned as in a run, but
without flushing: only what is left on the disk in the end matters here.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pyarrow as pa

from assent.ledger.identity import Owner
from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.protocol.coordinator import Coordinator
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.record import Author, Decision, RecordKey
from assent.testing.memory import MemoryCheckpoint, MemoryServer, MemorySink
from bench import command, target
from bench.result import Measure, Result, ratio
from bench.target import Outcome

START, EPOCH, WIDE = "a start", "an epoch", "an epoch's coordinator"
YOUNG, OLD = 10, 100_000
RESTARTS = 100
SIZES = (
    command.Size("ages", (0, YOUNG, 1_000, OLD), (0, YOUNG, 300), "epochs of the histories"),
    command.Size("tasks", (1, 10, 100), (1, 10, 100), "tasks of an epoch"),
    command.Size("rounds", 200, 5, "how often each is measured"),
)
FAIRNESS = (
    "A ledger on the local disk, with every flush; the sink is a table in memory. Histories are "
    "written by the ledger itself and pruned as in a run. All ages, and all numbers of tasks, take "
    "turns; the first turn does not count."
)
TARGET = "bench"
BATCH = pa.record_batch({"value": pa.array([1])})


@contextmanager
def without_flushing() -> Iterator[None]:
    with mock.patch("os.fsync"):
        yield


@dataclass
class Aged:
    """A ledger with a history, and the checkpoint that belongs to it."""

    folder: Path
    epochs: int
    restarts: int = 0
    checkpoint: MemoryCheckpoint = field(default_factory=MemoryCheckpoint)
    server: MemoryServer = field(default_factory=MemoryServer)

    @property
    def name(self) -> str:
        age = f"{self.epochs:,} epochs" if self.epochs else "fresh"
        return f"{age}, {self.restarts} restarts" if self.restarts else age

    def build(self) -> None:
        """The history: one decision per epoch, and a new term after each part of them."""
        if not self.epochs:
            return
        ledger = Ledger(LocalStore(str(self.folder)))
        ledger.open(Owner(ledger.location, self.checkpoint.query(), (f"memory {TARGET}",)))
        retained = Policy().retained_epochs
        part = -(-self.epochs // (self.restarts + 1))
        epoch = 0
        while epoch < self.epochs:
            term = ledger.take(f"run {epoch}").term
            for place in range(term.first_place, term.first_place + part):
                ledger.write(
                    Decision(
                        RecordKey(place, term.number),
                        Author(term.author.run, f"{epoch:016x}"),
                        epoch,
                        str(epoch),
                        epoch - 1 if epoch else None,
                        0.0,
                        1,
                        (),
                    )
                )
                epoch += 1
                if epoch % (retained // 4) == 0:
                    ledger.prune(ledger.tail(term), retained)
                if epoch == self.epochs:
                    break
        self._fix(self.epochs - 1)
        self.checkpoint.committed.add(self.epochs - 1)

    def _fix(self, epoch: int) -> None:
        self.checkpoint.offsets = {epoch: str(epoch)}

    def coordinator(self) -> Coordinator:
        sink = MemorySink(self.server, TARGET)
        return Coordinator(Ledger(LocalStore(str(self.folder))), [sink], self.checkpoint)

    def time_start(self) -> float:
        """Seconds of a start. What it leaves is removed again: the age stays what it is."""
        before = set(self.folder.rglob("*"))
        self._fix(self.epochs)
        started = time.perf_counter()
        self.coordinator().plan()
        seconds = time.perf_counter() - started
        for path in sorted(set(self.folder.rglob("*")) - before, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if not before:
            shutil.rmtree(self.folder)
        return seconds

    def epoch_timer(self, tasks: int = 1, *, alone: bool = False) -> Callable[[], float]:
        """A running query, of which each call times one epoch more; `alone` without its tasks."""
        coordinator, epoch = self.coordinator(), self.epochs
        self._fix(epoch)
        coordinator.plan()

        def run() -> float:
            nonlocal epoch
            self._fix(epoch)
            self.server.transactions.clear()  # the sink's own history is not what is measured
            started = time.perf_counter()
            assignment = coordinator.plan()
            voting = time.perf_counter()
            votes = [
                Participant(coordinator.sinks, assignment).vote(epoch, task, 0, iter([BATCH]))
                for task in range(tasks)
            ]
            voted = time.perf_counter()
            coordinator.commit(votes, epoch)
            seconds = time.perf_counter() - started
            if alone:
                seconds -= voted - voting
            self.checkpoint.committed = {epoch}
            epoch += 1
            return seconds

        return run


def measure(options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="assent-bench-") as folder:
        ages = [Aged(Path(folder, str(age)), age) for age in options.ages]
        ages.append(Aged(Path(folder, "restarts"), 1_000, RESTARTS))
        with without_flushing():
            for aged in ages:
                command.say(f"  a history of {aged.name}")
                aged.build()
        names = [aged.name for aged in ages]
        measures = [
            *_in_turns(START, names, [aged.time_start for aged in ages], options.rounds),
            *_in_turns(EPOCH, names, [aged.epoch_timer() for aged in ages], options.rounds),
        ]
        wide = [Aged(Path(folder, f"wide-{tasks}"), 0) for tasks in options.tasks]
        timers = [
            aged.epoch_timer(tasks, alone=True)
            for aged, tasks in zip(wide, options.tasks, strict=True)
        ]
        named = ["1 task" if tasks == 1 else f"{tasks} tasks" for tasks in options.tasks]
        measures += _in_turns(WIDE, named, timers, options.rounds)
    outcomes = []
    if {YOUNG, OLD} <= set(options.ages):
        value = ratio(measures, EPOCH, f"{OLD:,} epochs", f"{YOUNG:,} epochs")
        outcomes.append(Outcome(target.GROWTH, value))
    return Result("growth", "Growth", FAIRNESS, {}, tuple(measures), tuple(outcomes))


def _in_turns(
    group: str, names: list[str], timers: list[Callable[[], float]], rounds: int
) -> list[Measure]:
    """All timers in turn, each round beginning with another one; the first does not count."""
    seconds: list[list[float]] = [[] for _ in timers]
    for turn in range(rounds + 1):
        for step in range(len(timers)):
            place = (turn + step) % len(timers)
            taken = timers[place]()
            if turn:
                seconds[place].append(taken)
    return [
        Measure.of(group, name, "ms", [1000 * second for second in taken])
        for name, taken in zip(names, seconds, strict=True)
    ]


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
