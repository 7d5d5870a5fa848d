"""All interleavings of a small case: two tasks, two epochs, and crashes anywhere.

Every history is run from its start, along a list of choices; what is not in the list is chosen
first-come and its alternatives are kept for later. A history is given up where it comes to a state
that was seen before. A state is what is durable, together with what each actor has been told so
far: actors are deterministic, so whoever was told the same does the same from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from assent.testing.simulation.broker import Broker
from assent.testing.simulation.choices import Choices
from assent.testing.simulation.driver import Driver
from assent.testing.simulation.history import Outcome
from assent.testing.simulation.scheduler import Actor, Endless, Fate
from assent.testing.simulation.world import Setting, World

EPOCHS = 2


class Seen(BaseException):
    """The history has come to a state that another one has been in."""


@dataclass
class Search:
    """What the walk through one case has found."""

    setting: Setting
    crashes: int
    takes_over: bool = False
    """Whether a crash may also be a driver that is only believed dead."""
    states: set[int] = field(default_factory=set)
    interleavings: int = 0
    histories: int = 0
    failed: Outcome | None = None

    _left: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    @property
    def is_complete(self) -> bool:
        """Whether everything was seen, rather than a violation found or time run out."""
        return not self._left and self.failed is None

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Walk on until all is seen, something is wrong, or `until` holds."""
        while self._left and self.failed is None and not until():
            self._walk(self._left.pop())

    def _walk(self, prefix: tuple[int, ...]) -> None:
        choices = Choices(prefix)
        world = World(self.setting, choices)
        case = Case(world, self.crashes, self.takes_over)
        self.histories += 1

        def choose(count: int) -> int:
            """One of so many ways to go on; the others are kept for later."""
            made = len(choices.made)
            if made >= len(prefix):
                state = case.state()
                if state in self.states:
                    raise Seen
                self.states.add(state)
                before = tuple(choices.made)
                self._left.extend((*before, other) for other in range(1, count))
            return choices.pick(count)

        with world.installed():
            try:
                case.run(choose)
                self.interleavings += 1
            except Seen:
                pass
            except Endless:
                world.witness.violate("the history does not come to an end")
            finally:
                violations = tuple(world.witness.violations)
                world.scheduler.end_all()
        if violations:
            self.failed = Outcome(
                self.setting, tuple(choices.made), violations, world.scheduler.steps
            )


class Case:
    """One history of the small case: every operation is a choice of who does the next one."""

    def __init__(self, world: World, crashes: int, takes_over: bool) -> None:
        self.world = world
        self.takes_over = takes_over
        self._crashes = crashes
        self._drivers: list[Driver] = []
        world.scheduler.adversary = self
        world.network.is_observed = True

    def interrupt(self, actor: Actor, operation: str, mutates: bool) -> Fate | None:
        """Each operation waits in the hub for its turn; answers come at once."""
        if not operation.endswith("answered"):
            actor.operation, actor.mutates = operation, mutates
            self.world.scheduler.pause()
        return None

    def run(self, choose: Callable[[int], int]) -> None:
        world, scheduler = self.world, self.world.scheduler
        while not world.witness.violations:
            ready = sorted(scheduler.ready(), key=lambda actor: actor.name)
            if not any(driver.running and not driver.is_dead for driver in self._drivers):
                if len(world.checkpoint.committed) >= EPOCHS and not ready:
                    break
                if len(world.checkpoint.committed) < EPOCHS:
                    self._start(EPOCHS - len(world.checkpoint.committed))
                    continue
            # A crash before an operation that changes nothing is one before the next that does.
            victims = [one for one in ready if one.mutates and self._crashes]
            doomed = [one for one in ready if one.process.is_doomed]
            if doomed:
                scheduler.run(doomed[0])
                continue
            steps: list[Callable[[], None]] = [partial(scheduler.run, one) for one in ready]
            steps += [partial(self._kill, one) for one in victims]
            if self.takes_over and any(one.kind == "driver" for one in victims):
                steps.append(self._take_over)
            steps[choose(len(steps)) if len(steps) > 1 else 0]()
        self._check_end()

    def _start(self, epochs: int) -> None:
        driver = Driver(self.world, len(self._drivers) + 1)
        self._drivers.append(driver)
        driver.start(epochs)

    def _take_over(self) -> None:
        """Somebody believes the driver dead, which goes on: counts as a crash."""
        self._crashes -= 1
        self.world.scheduler.note("another driver is started")
        self._start(EPOCHS - len(self.world.checkpoint.committed) or 1)
        for driver in self._drivers:
            driver.overlapped = True

    def _kill(self, actor: Actor) -> None:
        self._crashes -= 1
        self.world.scheduler.note(f"{actor.name} is killed before: {actor.operation}")
        driver = actor.process.driver
        if actor.kind == "task" or driver is None:
            actor.process.is_doomed = True
        else:
            driver.crash()

    def _check_end(self) -> None:
        """One more run, with nobody in its way, has nothing to complain about or leave behind."""
        world, scheduler = self.world, self.world.scheduler
        if world.witness.violations:
            return
        scheduler.adversary = None
        world.network.is_observed = False
        world.is_quiet = True
        driver = Driver(world, len(self._drivers) + 1)
        driver.start(1)
        while ready := scheduler.ready():
            scheduler.run(ready[0])
        if driver.errors:
            world.witness.violate(f"stopped without need: {driver.errors}")
        else:
            world.witness.check_end(EPOCHS + 1)

    def state(self) -> int:
        """What is durable, and what everybody has been told."""
        world = self.world
        stores: list[object] = []
        for store in world.stores:
            if isinstance(store, Broker):
                ids = [(name, repr(known)) for name, known in sorted(store.ids.items())]
                stores.append(tuple(ids))
            else:
                stores.append((tuple(sorted(store.prepared)), tuple(sorted(store.witnesses))))
        actors = sorted(
            (actor.name, actor.seen, actor.operation, actor.process.is_doomed)
            for actor in world.scheduler.actors
        )
        files = tuple(sorted(world.ledger_files().items()))
        checkpoint = tuple(world.checkpoint.offsets), tuple(sorted(world.checkpoint.committed))
        return hash((tuple(stores), files, checkpoint, tuple(actors), self._crashes))


def replay(search: Search) -> Outcome:
    """The history that broke a rule, once more, with its trace."""
    assert search.failed is not None
    choices = Choices(search.failed.choices)
    world = World(search.setting, choices)
    world.scheduler.trace = [str(search.setting)]
    case = Case(world, search.crashes, search.takes_over)
    with world.installed():
        try:
            case.run(choices.pick)
        finally:
            violations = tuple(world.witness.violations)
            world.scheduler.end_all()
    trace = tuple(world.scheduler.trace)
    return Outcome(search.setting, tuple(choices.made), violations, world.scheduler.steps, trace)


def small_case(store: str = "database") -> Setting:
    """Two tasks in each of two epochs, each with rows."""
    return Setting(stores=(store,), tasks=2)
