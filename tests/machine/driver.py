"""The engine: runs epochs as Spark does, and calls the protocol from where Spark calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import (
    AssentError,
    FencedError,
    InDoubtError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.parallel import one_by_one
from assent.protocol.participant import Participant
from assent.protocol.vote import Vote
from tests.machine.actor import Actor, Crash, Death, Fault, Injected, Kind, current, gate
from tests.machine.world import Votes, World

Result = TypeVar("Result")

ATTEMPTS = 2


class Stopped(Exception):
    """The engine ends the query for a reason of its own."""


@dataclass(frozen=True)
class Script:
    """How a run of the query goes, as far as the engine and its tasks have a choice."""

    epochs: int = 1
    tasks: int = 1
    shift: int = 0
    duplicated: frozenset[int] = frozenset()
    """Partitions of which a second attempt succeeds as well."""
    straggling: frozenset[int] = frozenset()
    """Partitions of which an attempt is still under way when another one has succeeded."""
    straggles_at: int = 0
    stopped_after: int | None = None
    """The query is stopped when that many tasks have voted; the others go on."""
    abort_after_commit: bool = True
    """Spark 4.3 calls abort after a commit that raised, Spark 4.2 does not."""


class Driver:
    """A driver with the two Python processes beside it, which remember what they know."""

    def __init__(self, world: World, name: str, one_process: bool) -> None:
        self.world = world
        self.name = name
        self.one_process = one_process
        self.actor: Actor | None = None
        self.stragglers: list[Actor] = []
        self.dead = False
        self.overlapped = False
        self.errors: list[BaseException] = []
        self._processes: dict[str, Coordinator] = {}

    @property
    def is_running(self) -> bool:
        return self.actor is not None and not self.actor.finished

    def coordinator(self, process: str) -> Coordinator:
        process = "plan" if self.one_process else process
        if process not in self._processes:
            self._processes[process] = new_coordinator(self.world)
        return self._processes[process]

    def end_process(self, process: str) -> None:
        self._processes.pop("plan" if self.one_process else process, None)

    def run(self, script: Script) -> None:
        """One run of the query: epoch after epoch until something ends it."""
        self.errors.clear()
        try:
            epoch = self._first_epoch()
            for number in range(script.epochs):
                if number:
                    epoch += 1
                    self._fix_input(epoch)
                self._run_epoch(epoch, script)
        except (Crash, Death):
            self.dead = True
            raise
        except (AssentError, Injected, Stopped) as error:
            self._note(error)
        except BaseException as error:
            self.world.violate(f"{self.name}: {error!r}")
            raise

    def _first_epoch(self) -> int:
        checkpoint = self.world.checkpoint
        newest = checkpoint.newest_epoch()
        if newest is not None and not checkpoint.is_committed(newest):
            return newest
        epoch = 0 if newest is None else newest + 1
        self._fix_input(epoch)
        return epoch

    def _fix_input(self, epoch: int) -> None:
        gate("engine offsets")
        offsets = self.world.checkpoint.offsets
        if epoch in offsets or epoch - 1 not in {*self.world.checkpoint.committed, -1}:
            raise Stopped("another driver writes into this checkpoint")
        offsets[epoch] = f"input of {epoch}, {self.world.generation}"

    def _run_epoch(self, epoch: int, script: Script) -> None:
        world = self.world
        assignment = self._call("plan", lambda coordinator: coordinator.plan())
        if assignment.key.term == max(term_numbers(world)):
            world.check_retention()
        tasks = script.tasks if world.hazard == "replay" else world.tasks_of(epoch)
        votes: list[Vote] = []
        try:
            for partition in range(tasks):
                if partition in script.straggling:
                    self._straggle(assignment, epoch, partition, tasks, script)
                if script.stopped_after is not None and partition >= script.stopped_after:
                    if partition not in script.straggling:
                        self._straggle(assignment, epoch, partition, tasks, script)
                    continue
                votes.append(self._vote(assignment, epoch, partition, tasks, script))
                if partition in script.duplicated:
                    self._vote(assignment, epoch, partition, tasks, script)
            if len(votes) < tasks:
                raise Stopped("the query was stopped while tasks were running")
        except (AssentError, Injected, Stopped) as error:
            world.collected.append(Votes(self.name, tuple(votes), epoch, all_tasks=False))
            self._abort(votes, epoch, assignment)
            raise error
        world.collected.append(Votes(self.name, tuple(votes), epoch, all_tasks=True))
        try:
            self._call("commit", lambda coordinator: coordinator.commit(votes, epoch))
        except (AssentError, Injected, Stopped) as error:
            if script.abort_after_commit and not self.one_process:
                self._note(error)
                self._abort(votes, epoch, assignment)
            raise error
        gate("engine commit")
        if world.checkpoint.is_committed(epoch):
            raise Stopped("another driver has finished this epoch")
        world.checkpoint.committed.add(epoch)
        world.finished.add(epoch)
        world.snapshots.append((dict(world.checkpoint.offsets), set(world.checkpoint.committed)))

    def _abort(self, votes: Sequence[Vote], epoch: int, assignment: Assignment) -> None:
        if self.one_process:
            self._call("commit", lambda one: one.abort((), epoch, assignment))
        else:
            self._call("commit", lambda one: one.abort(votes, epoch))

    def _call(self, process: str, function: Callable[[Coordinator], Result]) -> Result:
        """Let a process do something, and wait for its answer."""
        actor = current()
        assert actor is not None
        actor.phase = process
        try:
            result = function(self.coordinator(process))
        except Death:
            actor.survive()
            self.end_process(process)
            raise Stopped(f"the {process} process died") from None
        finally:
            actor.phase = "engine"
        if self.dead:  # nobody waits for the answer any more
            raise Crash
        return result

    def _vote(
        self, assignment: Assignment, epoch: int, partition: int, tasks: int, script: Script
    ) -> Vote:
        """A task with its attempts; the last error if all of them fail."""
        actor = current()
        assert actor is not None
        actor.phase = "task"
        failure: Exception = Stopped("no attempt")
        try:
            for attempt in range(ATTEMPTS):
                try:
                    vote = self._attempt(assignment, epoch, partition, attempt, tasks, script)
                    if self.dead:
                        raise Crash
                    return vote
                except Death:
                    actor.survive()
                    failure = Stopped("the executor died")
                except (AssentError, Injected) as error:
                    failure = error
            raise failure
        finally:
            actor.phase = "engine"

    def _straggle(
        self, assignment: Assignment, epoch: int, partition: int, tasks: int, script: Script
    ) -> None:
        def work() -> None:
            try:
                self._attempt(assignment, epoch, partition, 9, tasks, script)
            except (AssentError, Injected):
                pass  # its driver no longer listens

        actor = Actor(f"{self.name} straggler {epoch}.{partition}", work)
        actor.phase = "task"
        self.stragglers.append(actor)
        actor.resume([Fault("", script.straggles_at, Kind.PARK)])

    def _attempt(
        self,
        assignment: Assignment,
        epoch: int,
        partition: int,
        attempt: int,
        tasks: int,
        script: Script,
    ) -> Vote:
        world = self.world
        batches = [
            pa.record_batch({"row": [row]})
            for number, row in enumerate(world.rows_of(epoch))
            if (number + script.shift) % tasks == partition
        ]
        travelled = Assignment.from_json(assignment.to_json())
        participant = Participant(world.sinks, travelled, clock=world.clock)
        return Vote.parse(str(participant.vote(epoch, partition, attempt, batches)))

    def _note(self, error: Exception) -> None:
        """Every stop has to have a reason."""
        world = self.world
        self.errors.append(error)
        if isinstance(error, (FencedError, RetriableError, TornEpochError, Injected, Stopped)):
            return
        if isinstance(error, InDoubtError):
            if "no longer knows" in str(error) and world.hazard != "forget":
                world.violate(f"{self.name}: the store forgot nothing: {error}")
            return
        if isinstance(error, ReplayError) and (
            world.restored_too_old or world.hazard == "replay" or self.overlapped
        ):
            return
        world.violate(f"{self.name}: {error!r}")


def new_coordinator(world: World) -> Coordinator:
    return Coordinator(
        world.ledger(),
        world.sinks,
        world.checkpoint,
        world.policy,
        [world.listener],
        clock=world.clock,
        sleep=world.sleep,
        parallel=one_by_one,
    )


def term_numbers(world: World) -> list[int]:
    return [int(name[6:14]) for name in world.store.files if name.startswith("terms/")]
