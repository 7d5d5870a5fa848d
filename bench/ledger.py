"""What the ledger costs as a query grows old: `python -m bench.ledger [--json]`.

Real coordinator, real disk with every flush, and a sink that costs nothing. Two things are
measured on ledgers of different age: a start (a new process opens the ledger, closes the term of
the run before, takes its own and plans), and one epoch (plan, one task with one row, decide,
commit, complete). Ages take turns, so that whatever else the machine does hits all of them; what
is printed is the median, the spread between the quartiles, and the ratio to a fresh ledger.

The histories are written by the ledger itself, decision by decision and pruned as in a run, but
without flushing: only what is left on the disk in the end matters here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
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

Summary = dict[str, float]
AGES = (0, 10, 1_000, 100_000)
RESTARTS = 100
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

    def epoch_timer(self) -> Callable[[], float]:
        """A running query, of which each call times one epoch more."""
        coordinator, epoch = self.coordinator(), self.epochs
        self._fix(epoch)
        coordinator.plan()

        def run() -> float:
            nonlocal epoch
            self._fix(epoch)
            self.server.transactions.clear()  # the sink's own history is not what is measured
            started = time.perf_counter()
            assignment = coordinator.plan()
            vote = Participant(coordinator.sinks, assignment).vote(epoch, 0, 0, iter([BATCH]))
            coordinator.commit([vote], epoch)
            seconds = time.perf_counter() - started
            self.checkpoint.committed = {epoch}
            epoch += 1
            return seconds

        return run


def measure(timers: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    """All timers in turn, each round beginning with another one; the first round is thrown away."""
    seconds: list[list[float]] = [[] for _ in timers]
    for turn in range(rounds + 1):
        for step in range(len(timers)):
            place = (turn + step) % len(timers)
            taken = timers[place]()
            if turn:
                seconds[place].append(taken)
    return seconds


def summary(seconds: list[float], fresh: list[float]) -> Summary:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {
        "milliseconds": round(middle * 1e3, 3),
        "lowerQuartile": round(low * 1e3, 3),
        "upperQuartile": round(high * 1e3, 3),
        "ratioToFresh": round(middle / statistics.median(fresh), 3),
    }


def run(rounds: int) -> dict[str, dict[str, Summary]]:
    """All measurements: of a start, and of an epoch, by age."""
    with tempfile.TemporaryDirectory(prefix="assent-bench-") as folder:
        ages = [Aged(Path(folder, str(age)), age) for age in AGES]
        ages.append(Aged(Path(folder, "restarts"), 1_000, RESTARTS))
        with without_flushing():
            for aged in ages:
                aged.build()
        starts = measure([aged.time_start for aged in ages], rounds)
        epochs = measure([aged.epoch_timer() for aged in ages], rounds)
        return {
            what: {
                aged.name: summary(seconds, taken[0])
                for aged, seconds in zip(ages, taken, strict=True)
            }
            for what, taken in (("start", starts), ("epoch", epochs))
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the ledger of old and young queries.")
    parser.add_argument("--rounds", type=int, default=30, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    results = run(options.rounds)
    if options.json:
        print(json.dumps({"bench": "ledger", "rounds": options.rounds, "results": results}))
        return
    for what, by_age in results.items():
        for age, found in by_age.items():
            print(
                f"{what:8}{age:30}{found['milliseconds']:9.2f} ms "
                f"({found['lowerQuartile']:.2f} to {found['upperQuartile']:.2f})"
                f"{found['ratioToFresh']:8.2f} x fresh"
            )


if __name__ == "__main__":
    main()
