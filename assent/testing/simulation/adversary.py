"""The adversary of a random history: what goes wrong, where, and who goes on in between."""

from __future__ import annotations

from collections.abc import Callable

from assent.protocol.verdict import Verdict
from assent.testing.simulation.broker import Broker
from assent.testing.simulation.driver import Driver
from assent.testing.simulation.scheduler import Actor, Crash, Fate, Injected
from assent.testing.simulation.world import World

HOUR = 3600.0
DAY = 24 * HOUR
NEVER = 1 << 60
Fault = Callable[[Actor, str], Fate | None]
SLICES = (NEVER, 1, 2, 3, 5, 8, 13, 34)
"""How many operations an actor does before another one gets its turn."""
ARRIVALS = (NEVER, 1, 2, 3, 4, 5, 8, 20, 60)
"""How many operations later a delayed request arrives."""
TARGETS = ("", "", "", "commit", "commit", "list", "vote", "finish", "describe")
TARGETS_OF = {
    "objects": ("create records", "create records", "create", "delete"),
    "disk": ("disk: linked /ledger/records", "disk: linked", "disk: flush", "disk"),
    "broker": ("abort", "initialise", "produce", "describe", "tell"),
    "database": ("roll back", "prepare", "is prepared", "has witness"),
    "forgetful": ("roll back", "prepare", "is prepared"),
}
"""Where a fault may be aimed: at the n-th operation from now that begins so."""


class RandomAdversary:
    """Counts operations down to the next fault and to the next switch."""

    def __init__(self, world: World, drivers: list[Driver], start: Callable[[], None]) -> None:
        self._world = world
        self._choices = world.choices
        self._drivers = drivers
        self._start = start
        self._scale = self._choices.one_of((40, 12, 100))
        self._faults = self._choices.pick(6)
        self._slices = SLICES[: 1 + self._choices.pick(len(SLICES))]
        setting = world.setting
        kinds = [setting.ledger, *(store.split()[0] for store in setting.stores)]
        self._targets = (*TARGETS, *(target for kind in kinds for target in TARGETS_OF[kind]))
        self._target = ""
        self._until_fault = self._gap()
        self._until_switch = self._slice()
        self._until_arrival = self._choices.one_of(ARRIVALS)
        self._failing = 0
        anything: tuple[Fault, ...] = (
            self._fail,
            self._fail,
            self._fail_for_long,
            self._late,
            self._late,
            self._twice,
            self._crash,
            self._crash,
            self._crash_all,
            self._orphan,
            self._end_process,
            self._end_process,
            self._cut_power,
            *(self._sleep,) * 5,
            *(self._second_driver,) * 2,
            *(self._stop_query,) * 3,
            self._give_up,
            self._give_up,
            self._give_up_all,
            self._pass_time,
            self._restart_store,
            self._restore,
        )
        in_between = (self._fail, self._land, self._land, self._give_up, self._sleep)
        disk = (self._fail, self._end_process, self._end_process, self._crash, self._cut_power)
        late = (self._late,) * 5
        on_disk = [target for target in self._targets if target.startswith("disk")]
        self._kinds: dict[str, tuple[Fault, ...]] = {
            **dict.fromkeys(self._targets, anything),
            "commit": (*anything, *late, self._crash, self._fail_for_long, self._orphan),
            "tell": (self._fail, self._fail, self._late, self._crash, self._end_process),
            **dict.fromkeys(("is prepared", "has witness", "describe"), in_between),
            **dict.fromkeys(on_disk, disk),
        }

    def interrupt(self, actor: Actor, operation: str, mutates: bool) -> Fate | None:
        if self._failing:
            self._failing -= 1
            if not operation.endswith("answered") and operation not in ("sleep", "vote"):
                raise Injected(f"{operation}: no answer")
        self._until_switch -= 1
        if self._until_switch <= 0:
            self._until_switch = self._slice()
            self._world.scheduler.pause()
        if self._world.network.delayed:
            self._until_arrival -= 1
            if self._until_arrival <= 0:
                self._until_arrival = self._choices.one_of(ARRIVALS)
                self._land(actor, operation)
        if operation.startswith(self._target):
            self._until_fault -= 1
        if self._until_fault > 0:
            return None
        kinds = self._kinds[self._target]
        self._until_fault = self._gap()
        return self._choices.one_of(kinds)(actor, operation)

    def _gap(self) -> int:
        if not self._faults:
            return NEVER
        self._faults -= 1
        self._target = self._choices.one_of(self._targets)
        if self._target:
            return self._choices.one_of((NEVER, 1, 1, 2, 2, 3, 4, 6))
        return self._choices.pick(self._scale) or NEVER

    def _slice(self) -> int:
        return self._choices.one_of(self._slices)

    def _note(self, text: str) -> None:
        self._world.scheduler.note(text)

    # The faults. Zero is the first.

    def _fail(self, actor: Actor, operation: str) -> None:
        self._note("fails, or its answer is lost")
        raise Injected(f"{operation}: no answer")

    def _fail_for_long(self, actor: Actor, operation: str) -> None:
        self._failing = 1 + self._choices.pick(30)
        self._note(f"nothing answers for {self._failing} operations")

    def _late(self, actor: Actor, operation: str) -> Fate:
        self._note("arrives later, if it is a request that changes anything")
        return Fate.LATE

    def _twice(self, actor: Actor, operation: str) -> Fate:
        self._note("arrives again later, if it is a request that changes anything")
        return Fate.TWICE

    def _crash(self, actor: Actor, operation: str) -> None:
        """Kill whoever does this: a task, or a driver with its processes."""
        self._note(f"{actor.process.name} is killed")
        driver = actor.process.driver
        if actor.kind == "task" or driver is None:
            actor.process.is_doomed = True
        else:
            driver.crash()

    def _crash_all(self, actor: Actor, operation: str) -> None:
        """The machine of the driver is gone, with the tasks on it."""
        self._note("everything is killed")
        for driver in self._drivers:
            driver.crash()
        for other in self._world.scheduler.actors:
            other.process.is_doomed = True

    def _orphan(self, actor: Actor, operation: str) -> None:
        driver = actor.process.driver
        if driver is not None:
            self._note(f"{driver.name} is killed; what it has started goes on")
            driver.orphan()

    def _end_process(self, actor: Actor, operation: str) -> None:
        """Kill the process alone: whoever waits for it gets an error."""
        self._note(f"{actor.process.name} is killed, and nothing else")
        actor.process.is_doomed = True

    def _cut_power(self, actor: Actor, operation: str) -> None:
        self._note("the power is cut")
        tasks_survive = self._choices.pick(2) == 0
        for driver in self._drivers:
            driver.crash()
        for other in self._world.scheduler.actors:
            if other.kind != "task" or not tasks_survive:
                other.process.is_doomed = True
        self._world.cut_power()

    def _sleep(self, actor: Actor, operation: str) -> None:
        """It stands still, and looks dead to others, until they have gone on for a while."""
        self._note(f"{actor.name} stands still")
        actor.asleep = True
        actor.sleeps_long = self._choices.pick(2) == 1
        self._world.scheduler.pause()

    def _second_driver(self, actor: Actor, operation: str) -> None:
        self._note("somebody starts the query a second time")
        self._start()

    def _stop_query(self, actor: Actor, operation: str) -> None:
        driver = actor.process.driver
        if driver is not None:
            self._note(f"the query of {driver.name} is stopped")
            driver.stop_asked = True

    def _give_up(self, actor: Actor, operation: str) -> None:
        """A store aborts an open transaction by itself, a decided one if there is any."""
        witness = self._world.witness
        found = [one for one in witness.transactions.values() if one.state is Verdict.PENDING]
        found = [one for one in found if witness.is_named(one.handle)] or found
        if found:
            chosen = self._choices.one_of(found)
            self._note(f"its store gives up {chosen.handle}")
            self._world.stores[chosen.sink].give_up(chosen)

    def _give_up_all(self, actor: Actor, operation: str) -> None:
        self._note("the stores give up whatever is open")
        for one in self._world.witness.transactions.values():
            if one.state is Verdict.PENDING:
                self._world.stores[one.sink].give_up(one)

    def _pass_time(self, actor: Actor, operation: str) -> None:
        seconds = self._choices.one_of((60.0, HOUR, -HOUR, 8 * DAY, 31 * DAY))
        driver = actor.process.driver
        if seconds < 0 and driver is not None:
            self._note(f"the clock of {driver.name} is set back by an hour")
            driver.skew += seconds
            return
        self._note(f"{seconds:.0f} seconds pass")
        if seconds >= 8 * DAY:
            self._world.network.lose()
        if seconds > 30 * DAY:  # a void outlives every process of its day
            self._crash_all(actor, operation)
        self._world.pass_time(abs(seconds))

    def _restart_store(self, actor: Actor, operation: str) -> None:
        store = self._choices.one_of(self._world.stores)
        self._note("a store is killed and started again")
        store.restart()
        if isinstance(store, Broker):
            store.busy = self._choices.pick(4)
        raise Injected(f"{operation}: the store is down")

    def _land(self, actor: Actor, operation: str) -> None:
        """A request that is under way arrives.."""
        if self._world.network.delayed:
            self._world.network.land(self._choices.pick(len(self._world.network.delayed)))

    def _restore(self, actor: Actor, operation: str) -> None:
        """The operator stops everything and restores the engine's checkpoint, not the ledger."""
        world = self._world
        if world.setting.hazard != "restore" or not world.snapshots:
            return self._fail(actor, operation)
        self._note("an older checkpoint is restored")
        self._crash_all(actor, operation)
        world.restore(-1 - self._choices.pick(len(world.snapshots)))
        raise Crash
