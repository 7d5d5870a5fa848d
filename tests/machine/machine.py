"""The state machine: what the adversary may do, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from assent.protocol.errors import AssentError, InDoubtError, ReplayError
from tests.machine.actor import Actor, Fault, Injected, Kind
from tests.machine.driver import Driver, Script, new_coordinator
from tests.machine.world import Votes, World

Schedule: TypeAlias = Sequence[Fault]

HAZARDS = ("none", "none", "none", "forget", "forget", "restore", "replay", "replay")
"""At most one of those that may end a history in an error that only an operator can mend."""

OPERATIONS = (
    "create records",
    "create records",
    "create terms",
    "create",
    "commit",
    "commit",
    "commit",
    "abort",
    "pre_commit",
    "begin",
    "verdict",
    "pending",
    "list",
    "read",
    "delete",
    "engine",
    "listener",
)

indexes = st.integers(0, 7)
kinds = st.sampled_from(list(Kind))
faults = st.builds(Fault, st.sampled_from(OPERATIONS), st.integers(0, 5), kinds)
after_decision = st.builds(Fault, st.just("commit"), st.integers(0, 4), kinds)
anywhere = st.builds(Fault, st.just(""), st.integers(0, 80), kinds)
before_a_sweep = st.builds(Fault, st.just("pending"), st.integers(0, 3), kinds)
before_a_decision = st.builds(
    Fault, st.just("create records"), st.integers(0, 3), st.just(Kind.PARK)
)
schedules = st.one_of(
    st.lists(faults, max_size=3),
    st.lists(after_decision, min_size=1, max_size=2),
    st.lists(anywhere, min_size=1, max_size=2),
)
some_partitions = st.frozensets(st.integers(0, 2), max_size=2)
scripts = st.builds(
    Script,
    epochs=st.integers(1, 3),
    tasks=st.sampled_from([2, 2, 2, 1, 3]),
    shift=st.integers(0, 1),
    duplicated=some_partitions,
    straggling=some_partitions,
    straggles_at=st.integers(0, 6),
    stopped_after=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 2)),
    abort_after_commit=st.booleans(),
)


class ProtocolMachine(RuleBasedStateMachine):
    """Drives coordinators and participants against a world in which anything may fail."""

    world: World

    @initialize(
        sinks=st.integers(1, 2),
        retained=st.sampled_from([2, 3, 100]),
        seed=st.integers(0, 14),
        hazard=st.sampled_from(HAZARDS),
        one_process=st.booleans(),
    )
    def begin(self, sinks: int, retained: int, seed: int, hazard: str, one_process: bool) -> None:
        self.world = World(sinks, retained, seed, hazard)
        self.one_process = one_process
        self.drivers: list[Driver] = []
        self.zombies: list[Actor] = []
        self.started = 0
        self.overtaken = 0

    # The engine

    @precondition(lambda self: len(self._running()) < 3)
    @rule(new=st.booleans(), index=indexes, script=scripts, schedule=schedules)
    def start(self, new: bool, index: int, script: Script, schedule: Schedule) -> None:
        """Start the query: in a new driver, or again in one that stands idle."""
        idle = self._idle()
        if new or not idle:
            self._start(self._new_driver(), script, schedule)
        else:
            self._start(idle[index % len(idle)], script, schedule)

    @precondition(lambda self: not self._running() and self.overtaken < 2)
    @rule(
        pause=st.one_of(faults, before_a_sweep, before_a_decision),
        script=scripts,
        epochs=st.integers(2, 5),
        halt=st.lists(before_a_decision, max_size=1),
        schedule=schedules,
    )
    def overtake(
        self, pause: Fault, script: Script, epochs: int, halt: Schedule, schedule: Schedule
    ) -> None:
        """A driver falls asleep, another takes over and runs on, and the first wakes up.

        The other has finished by then, or is in the middle of an epoch.
        """
        self.overtaken += 1
        sleeper = self._new_driver()
        self._start(sleeper, script, [replace(pause, kind=Kind.PARK)])
        self._start(self._new_driver(), Script(epochs=epochs), halt)
        if sleeper.actor is not None and sleeper.is_running:
            sleeper.actor.resume(schedule)

    @precondition(lambda self: self._parked())
    @rule(index=indexes, schedule=schedules)
    def resume(self, index: int, schedule: Schedule) -> None:
        """Somebody who stood still goes on: a driver, a task, or what is left of them."""
        actors = self._parked()
        actors[index % len(actors)].resume(schedule)

    @precondition(lambda self: self._parked())
    @rule(index=indexes)
    def kill(self, index: int) -> None:
        """Kill whoever stands still."""
        actors = self._parked()
        actors[index % len(actors)].kill()

    @precondition(lambda self: self._running())
    @rule(index=indexes)
    def orphan(self, index: int) -> None:
        """Kill the engine; its Python process ends only after what it is at."""
        running = self._running()
        running[index % len(running)].dead = True

    @precondition(lambda self: self._idle())
    @rule(index=indexes, process=st.sampled_from(["plan", "commit"]))
    def end_process(self, index: int, process: str) -> None:
        """A Python process beside the driver ends, and forgets what it knew."""
        idle = self._idle()
        idle[index % len(idle)].end_process(process)

    # Not when little is retained: an old call must not come later than the ledger remembers.
    @precondition(lambda self: self.world.policy.retained_epochs >= 100 and self._gone())
    @rule(index=indexes, aborts=st.booleans(), schedule=schedules)
    def call_late(self, index: int, aborts: bool, schedule: Schedule) -> None:
        """A call of a driver that is long gone arrives, perhaps for the second time."""
        found = [votes for votes in self._gone() if aborts or votes.all_tasks]
        if not found:
            return
        chosen = found[-1 - index % len(found)]
        coordinator = new_coordinator(self.world)
        for driver in self.drivers:
            driver.overlapped = driver.overlapped or driver.is_running

        def work() -> None:
            try:
                if aborts:
                    coordinator.abort(chosen.votes, chosen.epoch)
                else:
                    coordinator.commit(chosen.votes, chosen.epoch)
            except (AssentError, Injected):
                pass

        actor = Actor(f"late call for epoch {chosen.epoch}", work)
        self.zombies.append(actor)
        actor.resume(schedule)

    # The stores

    @precondition(lambda self: self.world.late)
    @rule(index=indexes)
    def land(self, index: int) -> None:
        """A creation whose answer was an error takes place after all."""
        self.world.land(index % len(self.world.late))

    @precondition(lambda self: any(server.open() for server in self.world.servers))
    @rule(index=indexes, decided=st.booleans(), everything=st.booleans())
    def expire(self, index: int, decided: bool, everything: bool) -> None:
        """The stores give up open transactions: one or all, and perhaps decided ones."""
        found = [
            (server, name)
            for server in self.world.servers
            for name in server.open()
            if not decided or name in self.world.named
        ]
        for server, name in found if everything else found[index % (len(found) or 1) :][:1]:
            server.expire([name])

    @precondition(lambda self: self.world.hazard == "forget")
    @rule(index=indexes)
    def forget(self, index: int) -> None:
        """A store forgets a decided transaction."""
        found = self.world.unfinished()
        if found:
            self.world.forget(*found[index % len(found)])

    @precondition(lambda self: self.world.hazard == "forget")
    @rule()
    def forget_the_past(self) -> None:
        """A store forgets everything that belongs to epochs that the engine has finished."""
        for position, server in enumerate(self.world.servers):
            for name, transaction in server.transactions.items():
                if transaction.epoch in self.world.checkpoint.committed:
                    self.world.sinks[position].forgotten.add(name)

    @precondition(lambda self: self.world.hazard == "restore" and self.world.snapshots)
    @rule(index=indexes)
    def restore(self, index: int) -> None:
        """The operator stops everything and restores the engine's checkpoint, not the ledger."""
        self._kill_all()
        self.world.restore(-1 - index % len(self.world.snapshots))

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 60.0, 86_400.0]))
    def turn_clock(self, seconds: float) -> None:
        self.world.now += seconds

    @invariant()
    def rules_hold(self) -> None:
        if hasattr(self, "world"):
            for actor in [*self.zombies, *(one for d in self.drivers for one in d.stragglers)]:
                if actor.error is not None:
                    self.world.violate(f"{actor.name}: {actor.error!r}")
            self.world.check()

    def teardown(self) -> None:
        """With the adversary quiet, one restart brings everything to its end."""
        if not hasattr(self, "world"):
            return
        self._kill_all()
        if self.world.violations:
            return  # reported before
        world = self.world
        while world.late:
            world.land(0)
        driver = self._new_driver()
        errors = self._run_quietly(driver)
        world.check()
        in_doubt = world.in_doubt()
        last = errors[-1] if errors else None
        if in_doubt:
            assert isinstance(last, InDoubtError), f"no InDoubtError, but {errors}"
            assert any(str(handle) in str(last) for handle in in_doubt), f"not named in {last}"
        elif world.restored_too_old or (world.hazard == "replay" and errors):
            assert isinstance(last, ReplayError), f"no ReplayError, but {errors}"
        else:
            assert not errors, f"stopped without need: {errors}"
            assert world.checkpoint.committed >= set(world.checkpoint.offsets)
            for epoch in range(max(world.checkpoint.offsets) + 1):
                assert world.is_visible(epoch), f"epoch {epoch} is not visible"
            for server in world.servers:
                assert not server.open(), f"left behind: {server.open()}"

    def _run_quietly(self, driver: Driver) -> list[BaseException]:
        self._start(driver, Script(epochs=3), ())
        assert not driver.is_running
        return driver.errors

    def _new_driver(self) -> Driver:
        self.started += 1
        driver = Driver(self.world, f"driver {self.started}", self.one_process)
        self.drivers.append(driver)
        return driver

    def _start(self, driver: Driver, script: Script, schedule: Schedule) -> None:
        others = [other for other in self.drivers if other.is_running]
        parked = [zombie for zombie in self.zombies if not zombie.finished]
        driver.overlapped = bool(others or parked)
        for other in others:
            other.overlapped = True
        driver.actor = Actor(driver.name, lambda: driver.run(script))
        driver.actor.resume(schedule)

    def _parked(self) -> list[Actor]:
        actors = [driver.actor for driver in self.drivers if driver.actor is not None]
        actors += [actor for driver in self.drivers for actor in driver.stragglers]
        return [actor for actor in [*actors, *self.zombies] if not actor.finished]

    def _running(self) -> list[Driver]:
        return [driver for driver in self.drivers if driver.is_running]

    def _idle(self) -> list[Driver]:
        return [driver for driver in self.drivers if not driver.is_running and not driver.dead]

    def _gone(self) -> list[Votes]:
        """What drivers had in hand that are dead now."""
        gone = {driver.name for driver in self.drivers if driver.dead}
        return [votes for votes in self.world.collected if votes.driver in gone]

    def _kill_all(self) -> None:
        for actor in self._parked():
            actor.kill()
