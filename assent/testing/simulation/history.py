"""One history: a setting, some runs of the query with faults, then quiet, then the last checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assent.protocol.errors import InDoubtError, LossError, ReplayError
from assent.testing.simulation.adversary import RandomAdversary
from assent.testing.simulation.choices import Choices
from assent.testing.simulation.driver import Driver
from assent.testing.simulation.operator import settle_what_stands_still
from assent.testing.simulation.scheduler import Endless, Process
from assent.testing.simulation.world import Setting, World

QUIET_RUNS = 12
"""So many restarts are enough, with an operator at hand, for anything that may be open."""


@dataclass(frozen=True)
class Outcome:
    """How a history went. `choices` replay it."""

    setting: Setting
    choices: tuple[int, ...]
    violations: tuple[str, ...]
    steps: int
    trace: tuple[str, ...] = ()


def run_history(
    seed: int | None = None, given: Sequence[int] = (), *, traced: bool = False
) -> Outcome:
    """Run the history of a seed, or that of a list of choices."""
    choices = Choices(given, seed)
    setting = Setting.draw(choices)
    history = History(World(setting, choices))
    if traced:
        history.world.scheduler.trace = [str(setting)]
    with history.world.installed():
        history.run()
    scheduler = history.world.scheduler
    return Outcome(
        setting,
        tuple(choices.made),
        tuple(history.world.witness.violations),
        scheduler.steps,
        tuple(scheduler.trace or ()),
    )


class History:
    """Starts drivers one after the other, wakes who has slept, and ends in quiet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.drivers: list[Driver] = []
        self.starts_left = 0

    def run(self) -> None:
        world = self.world
        world.scheduler.adversary = RandomAdversary(world, self.drivers, self.start_driver)
        self.starts_left = 1 + world.choices.pick(3)
        try:
            self._run_actors()
            if not world.witness.violations:
                self._end_quietly()
        except Endless:
            world.witness.violate("the history does not come to an end")
        finally:
            world.scheduler.end_all()

    def start_driver(self) -> None:
        """A new driver; or, now and then, the query again in one that stands idle."""
        choices = self.world.choices
        idle = [one for one in self.drivers if not one.running and not one.is_dead]
        others = [one for one in self.drivers if one.running]
        if idle and choices.pick(2):
            driver = choices.one_of(idle)
        else:
            driver = Driver(self.world, len(self.drivers) + 1)
            self.drivers.append(driver)
        for one in [driver, *others]:
            one.overlapped = bool(others)
        driver.start(choices.one_of((1, 2, 1, 3)))

    def _run_actors(self) -> None:
        """Until nobody is left who could go on."""
        scheduler, choices, witness = self.world.scheduler, self.world.choices, self.world.witness
        while not witness.violations:
            ready = scheduler.ready()
            sleepers = [actor for actor in scheduler.actors if actor.asleep]
            napping = [actor for actor in sleepers if not actor.sleeps_long]
            if self.starts_left and not any(
                actor.kind == "driver" and not actor.asleep and not actor.process.is_doomed
                for actor in scheduler.actors
            ):
                self.starts_left -= 1
                if self.drivers:
                    self._look_after_the_dead()
                self.start_driver()
            elif napping and choices.pick(12) == 11:
                choices.one_of(napping).asleep = False
            elif ready:
                scheduler.run(ready[choices.pick(len(ready))] if len(ready) > 1 else ready[0])
            elif sleepers:
                choices.one_of(sleepers).asleep = False
            else:
                return

    def _look_after_the_dead(self) -> None:
        """Between two runs an operator may have a look, and late requests may arrive."""
        world = self.world
        stopped = any(isinstance(e, InDoubtError | LossError) for e in self.drivers[-1].errors)
        if stopped and world.choices.pick(2):
            self._operate()
        while world.network.delayed and world.choices.pick(2):
            world.network.land(0)
        if world.setting.hazard == "restore" and world.snapshots and world.choices.pick(2):
            for actor in world.scheduler.actors:
                actor.process.is_doomed = True
            for driver in self.drivers:
                driver.crash()
            world.restore(-1 - world.choices.pick(len(world.snapshots)))

    def _operate(self) -> None:
        world = self.world
        world.scheduler.spawn(
            f"operator {world.scheduler.steps}",
            "operator",
            Process("operator"),
            lambda: settle_what_stands_still(world),
        )

    def _end_quietly(self) -> None:
        """With the adversary quiet, restarts and an operator bring everything to its end."""
        world = self.world
        world.scheduler.note("from here on nothing fails")
        world.scheduler.adversary = None
        world.is_quiet = True
        while world.network.delayed:
            world.network.land(0)
        for driver in self.drivers:
            driver.crash()
        self._run_actors()
        for _ in range(QUIET_RUNS):
            driver = Driver(world, len(self.drivers) + 1)
            self.drivers.append(driver)
            driver.start(1)
            self._run_actors()
            if not driver.errors or world.witness.violations:
                break
            if isinstance(driver.errors[-1], InDoubtError | LossError):
                self._operate()
                self._run_actors()
            elif isinstance(driver.errors[-1], ReplayError):
                break
        self._check_end(driver)

    def _check_end(self, driver: Driver) -> None:
        world, witness = self.world, self.world.witness
        last = driver.errors[-1] if driver.errors else None
        if world.restored_too_old or (world.setting.hazard == "replay" and last is not None):
            if not isinstance(last, ReplayError):
                witness.violate(f"no ReplayError, but {driver.errors}")
        elif last is not None:
            witness.violate(f"stopped without need: {driver.errors}")
        else:
            witness.check_end(max(world.checkpoint.offsets) + 1)
