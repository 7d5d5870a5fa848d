"""Processes and actors: all in one thread, one at a time, and each switch is a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import greenlet

if TYPE_CHECKING:
    from assent.testing.simulation.driver import Driver

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_STEPS = 20_000
"""A history that is longer than this goes round in circles."""


class Crash(BaseException):
    """The process is killed: none of its code runs any further."""


class Endless(BaseException):
    """The history does not come to an end."""


class Injected(OSError):
    """An operation failed, or its answer was lost."""


class Fate(Enum):
    """What becomes of a request, beside an error."""

    LATE = "late"
    """Its sender gets an error, and it arrives later."""
    TWICE = "twice"
    """It arrives now, and a copy of it later."""


class Process:
    """What dies as a whole. `is_doomed` processes raise `Crash` at whatever they try to do."""

    def __init__(self, name: str, driver: Driver | None = None) -> None:
        self.name = name
        self.driver = driver
        self.is_doomed = False


class Actor:
    """One line of execution within a process."""

    def __init__(
        self, name: str, kind: str, process: Process, work: Callable[[], Any], hub: Any
    ) -> None:
        self.name = name
        self.kind = kind
        self.process = process
        self.finished = False
        self.asleep = False
        self.sleeps_long = False
        """Until nobody else has anything left to do."""
        self.error: BaseException | None = None
        self.result: Any = None
        self.waits_for: Callable[[], bool] | None = None
        self.operation = ""
        self.mutates = False
        """What it is about to do, and whether that changes anything."""
        self.children = 0
        self.drawn = 0
        self.seen = 0
        """A digest of all answers: with the code, it determines what the actor does next."""
        self._work = work
        self.greenlet = greenlet.greenlet(self._run, parent=hub)

    def _run(self) -> None:
        try:
            if not self.process.is_doomed:
                self.result = self._work()
        except (Crash, greenlet.GreenletExit):
            self.error = Crash()
        except BaseException as error:
            self.error = error
        finally:
            self.finished = True

    def is_ready(self) -> bool:
        if self.finished:
            return False
        if self.process.is_doomed:
            return True
        if self.asleep:
            return False
        return self.waits_for is None or self.waits_for()


class Adversary(Protocol):
    """Who chooses what happens at an operation, and who goes on."""

    def interrupt(self, actor: Actor, operation: str, mutates: bool) -> Fate | None:
        """Called before and after an operation, in the actor: may switch, and may raise."""


class Scheduler:
    """Runs actors from the hub, which is the greenlet that made the scheduler."""

    def __init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.adversary: Adversary | None = None
        self.steps = 0
        self.trace: list[str] | None = None

    # In the hub

    def spawn(self, name: str, kind: str, process: Process, work: Callable[[], Any]) -> Actor:
        actor = Actor(name, kind, process, work, self.hub)
        self.actors.append(actor)
        return actor

    def ready(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.is_ready()]

    def run(self, actor: Actor) -> None:
        """Let an actor go on until it comes back."""
        self.current = actor
        try:
            actor.greenlet.switch()
        finally:
            self.current = None
        if actor.finished:
            self.actors.remove(actor)
            if isinstance(actor.error, Endless):
                raise actor.error

    def end_all(self) -> None:
        """Kill whatever still runs."""
        for actor in list(self.actors):
            actor.process.is_doomed = True
        while self.actors:
            self.run(self.actors[0])

    # In an actor

    def point(self, operation: str, mutates: bool = True) -> Fate | None:
        """An operation takes place: the actor that does it may not survive."""
        actor = self.current
        if actor is None:
            return None
        if actor.process.is_doomed:  # the dead do nothing more, not even in a `finally`
            raise Crash
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Endless
        if self.trace is not None:
            self.trace.append(f"{actor.name}: {operation}")
        if self.adversary is None:
            return None
        fate = self.adversary.interrupt(actor, operation, mutates)
        if actor.process.is_doomed:
            raise Crash
        return fate

    def pause(self) -> None:
        """Back to the hub."""
        actor = self.current
        assert actor is not None
        self.hub.switch()
        if actor.process.is_doomed:
            raise Crash

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let others go on until the condition holds."""
        actor = self.current
        assert actor is not None
        while not condition():
            actor.waits_for = condition
            try:
                self.pause()
            finally:
                actor.waits_for = None

    def note(self, text: str) -> None:
        """A line of the trace that is nobody's operation."""
        if self.trace is not None:
            self.trace.append(f"    {text}")

    def at_once(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        """`Parallel` of the protocol: each item in an actor of its own, within the same process."""
        parent = self.current
        if parent is None or len(items) < 2:
            return [function(item) for item in items]
        children = []
        for item in items:
            parent.children += 1
            name = f"{parent.name}/{parent.children}"
            work = _bind(function, item)
            children.append(self.spawn(name, parent.kind, parent.process, work))
        self.wait(lambda: all(child.finished for child in children))
        for child in children:
            if child.error is not None:
                raise child.error
        return [child.result for child in children]


class Aside:
    """`Later` of the protocol: in an actor of its own, within the same process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._actor: Actor | None = None

    def start(self, function: Callable[[], object], /) -> None:
        self.wait()
        parent = self._scheduler.current
        assert parent is not None
        parent.children += 1
        name = f"{parent.name}/{parent.children}"
        self._actor = self._scheduler.spawn(name, parent.kind, parent.process, function)

    def wait(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            self._scheduler.wait(lambda: actor.finished)


def _bind(function: Callable[[Item], Result], item: Item) -> Callable[[], Result]:
    return lambda: function(item)
