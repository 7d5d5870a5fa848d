"""The engine: runs epochs as Spark does, and calls the protocol from where Spark calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import pyarrow as pa

from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import (
    AssentError,
    FencedError,
    InDoubtError,
    LossError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.participant import Participant
from assent.protocol.policy import OnTimeout
from assent.protocol.vote import Vote
from assent.testing.simulation.scheduler import Crash, Injected, Process
from assent.testing.simulation.world import World

Result = TypeVar("Result")

ATTEMPTS = 2


class Stopped(Exception):
    """The engine ends the query for a reason of its own."""


class Driver:
    """A driver with the two Python processes beside it, which remember what they know."""

    def __init__(self, world: World, number: int, skew: float = 0.0) -> None:
        self.world = world
        self.name = f"driver {number}"
        self.skew = skew
        self.engine = Process(self.name, self)
        self.running = False
        self.overlapped = False
        self.stop_asked = False
        self.errors: list[Exception] = []
        self._processes: dict[str, tuple[Process, Coordinator]] = {}
        self._runs = 0

    @property
    def run_name(self) -> str:
        return f"{self.name}.{self._runs}"

    @property
    def is_dead(self) -> bool:
        return self.engine.is_doomed

    def crash(self) -> None:
        """The driver is killed, and its Python processes with it. Tasks go on."""
        self.engine.is_doomed = True
        for process, _ in self._processes.values():
            process.is_doomed = True

    def orphan(self) -> None:
        """The driver is killed; its Python processes end only after what they are at."""
        self.engine.is_doomed = True

    def start(self, epochs: int) -> None:
        """One run of the query: epoch after epoch until something ends it."""
        self._runs += 1
        self.running, self.stop_asked = True, False
        self.errors.clear()
        self.world.scheduler.spawn(self.run_name, "driver", self.engine, lambda: self._run(epochs))

    def _run(self, epochs: int) -> None:
        try:
            epoch = self._first_epoch()
            for number in range(epochs):
                if number:
                    epoch += 1
                    self._fix_input(epoch)
                self._run_epoch(epoch)
        except (AssentError, Injected, Stopped) as error:
            self._note(error)
        except Exception as error:
            self.world.witness.violate(f"{self.name}: {error!r}")
        finally:
            self.running = False

    def _first_epoch(self) -> int:
        checkpoint = self.world.checkpoint
        newest = checkpoint.newest_epoch()
        if newest is not None and not checkpoint.is_committed(newest):
            return newest
        epoch = 0 if newest is None else newest + 1
        self._fix_input(epoch)
        return epoch

    def _fix_input(self, epoch: int) -> None:
        if not self.world.checkpoint.fix(epoch, f"input of {epoch}, {self.world.generation}"):
            raise Stopped("another driver writes into this checkpoint")

    def _run_epoch(self, epoch: int) -> None:
        world = self.world
        assignment = self._call("plan", lambda coordinator: coordinator.plan())
        files = world.ledger_files()
        if f"terms/{assignment.key.term + 1:08d}.json" not in files:
            world.witness.check_retention(files, world.policy.retained_epochs)
        stage = Stage(self, assignment, epoch)
        try:
            stage.run()
        except (AssentError, Injected, Stopped) as error:
            self._abort(stage.votes(), epoch, assignment)
            raise error
        votes = stage.votes()
        try:
            self._call("commit", lambda coordinator: coordinator.commit(votes, epoch))
        except (AssentError, Injected, Stopped) as error:
            if world.setting.abort_after_commit and not world.setting.one_process:
                self._note(error)
                self._abort(votes, epoch, assignment)
            raise error
        if not world.checkpoint.finish(epoch):
            raise Stopped("another driver has finished this epoch")
        world.witness.check_finished(epoch, "the engine has finished")
        world.snapshot()

    def _abort(self, votes: Sequence[Vote], epoch: int, assignment: Assignment) -> None:
        if self.world.setting.one_process:
            self._call("commit", lambda one: one.abort((), epoch, assignment))
        else:
            self._call("commit", lambda one: one.abort(votes, epoch))

    def _call(self, kind: str, function: Callable[[Coordinator], Result]) -> Result:
        """Let a process do something, and wait for its answer."""
        actor = self.world.scheduler.current
        assert actor is not None
        kind = "plan" if self.world.setting.one_process else kind
        if kind not in self._processes or self._processes[kind][0].is_doomed:
            process = Process(f"{self.name} {kind}", self)
            self._processes[kind] = process, self.world.coordinator(self.skew)
        process, coordinator = self._processes[kind]
        actor.process = process
        try:
            result = function(coordinator)
        except Crash:
            if self.engine.is_doomed:
                raise
            raise Stopped(f"the {kind} process died") from None
        finally:
            actor.process = self.engine
        if self.engine.is_doomed:  # nobody waits for the answer any more
            raise Crash
        return result

    def _note(self, error: Exception) -> None:
        """Every stop has to have a reason: docs/simulation.md lists them."""
        world = self.world
        self.errors.append(error)
        if world.scheduler.trace is not None:
            world.scheduler.note(f"{self.name} stops: {type(error).__name__}: {error}")
        if isinstance(error, (FencedError, RetriableError, TornEpochError, Injected, Stopped)):
            return
        if isinstance(error, InDoubtError):
            forgotten = any(str(handle) in str(error) for handle in world.forgotten())
            if "no longer knows" in str(error) and not forgotten:
                world.witness.violate(f"{self.name}: the store forgot nothing: {error}")
            return
        if isinstance(error, LossError) and world.policy.on_timeout is OnTimeout.FAIL:
            return
        if isinstance(error, ReplayError) and (
            world.restored_too_old or world.setting.hazard == "replay" or self.overlapped
        ):
            return
        world.witness.violate(f"{self.name}: {error!r}")


class Stage:
    """The tasks of one epoch: attempts, losers of speculation, and those nobody waits for."""

    def __init__(self, driver: Driver, assignment: Assignment, epoch: int) -> None:
        world = driver.world
        self._driver = driver
        self._assignment = assignment
        self._epoch = epoch
        self._votes: dict[int, Vote] = {}
        self._attempts: dict[int, int] = {}
        self._under_way: dict[int, int] = {}
        self._failures: dict[int, Exception] = {}
        self._is_over = False
        self._shift = 0
        self._tasks = world.tasks_of(epoch)
        if world.setting.hazard == "replay":
            self._tasks = world.choices.one_of((2, 2, 2, 1, 3))
            self._shift = world.choices.pick(2)
        elif assignment.is_decided(epoch):
            # Which task gets which part of the input may change when an epoch is replayed.
            self._shift = world.choices.pick(self._tasks)

    def votes(self) -> list[Vote]:
        return [self._votes[partition] for partition in sorted(self._votes)]

    def run(self) -> None:
        """Returns when each partition has voted."""
        scheduler = self._driver.world.scheduler
        for partition in range(self._tasks):
            self._start(partition)
            if self._driver.world.speculates():
                self._start(partition)
        try:
            while len(self._votes) < self._tasks:
                scheduler.wait(self._has_news)
                if self._driver.stop_asked:
                    raise Stopped("the query was stopped while tasks were running")
                for partition in range(self._tasks):
                    if partition in self._votes or self._under_way[partition]:
                        continue
                    if self._attempts[partition] >= ATTEMPTS:
                        raise self._failures[partition]
                    self._start(partition)
        finally:
            self._is_over = True

    def _has_news(self) -> bool:
        return (
            self._driver.stop_asked
            or len(self._votes) == self._tasks
            or any(
                not under_way and partition not in self._votes
                for partition, under_way in self._under_way.items()
            )
        )

    def _start(self, partition: int) -> None:
        attempt = self._attempts.get(partition, 0)
        self._attempts[partition] = attempt + 1
        self._under_way[partition] = self._under_way.get(partition, 0) + 1
        name = f"{self._driver.run_name}, task {self._epoch}.{partition}.{attempt}"
        self._driver.world.scheduler.spawn(
            name,
            "task",
            Process(name, self._driver),
            lambda: self._attempt(partition, attempt),
        )

    def _attempt(self, partition: int, attempt: int) -> None:
        failure: Exception = Stopped("the executor died")
        try:
            vote = self._write(partition, attempt)
            self._driver.world.scheduler.point("vote", False)
            if partition not in self._votes and not self._is_over:
                self._votes[partition] = vote
        except (AssentError, Injected) as error:
            failure = error
        finally:
            self._under_way[partition] -= 1
            self._failures[partition] = failure

    def _write(self, partition: int, attempt: int) -> Vote:
        world = self._driver.world
        rows = tuple(
            row
            for number, row in enumerate(world.rows_of(self._epoch))
            if (number + self._shift) % self._tasks == partition
        )
        batches = _batches(rows, world.setting.input_seed % 3 == 0)
        travelled = Assignment.from_json(self._assignment.to_json())
        skew = self._driver.skew
        participant = Participant(world.sinks, travelled, clock=lambda: world.now + skew)
        return Vote.parse(str(participant.vote(self._epoch, partition, attempt, batches)))


@cache
def _batches(rows: tuple[int, ...], one_by_one: bool) -> list[pa.RecordBatch]:
    cuts = [rows[at : at + 1] for at in range(len(rows))] if one_by_one else [rows]
    return [pa.record_batch({"row": pa.array(cut, pa.int64())}) for cut in cuts]
