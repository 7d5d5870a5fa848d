"""The network between processes and stores: requests get lost, come late, and come twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from assent.testing.simulation.scheduler import Fate, Injected, Scheduler

Result = TypeVar("Result")


@dataclass(frozen=True)
class Delayed:
    """A request that is under way, and whose sender no longer waits for it."""

    operation: str
    effect: Callable[[], object]


class Network:
    """Carries requests. `delayed` are those that may still arrive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.delayed: list[Delayed] = []
        self.is_observed = False
        """Whether actors keep a digest of all that they are told, for the exhaustive mode."""
        self._scheduler = scheduler

    def request(
        self, operation: str, effect: Callable[[], Result], *, mutates: bool = True
    ) -> Result:
        """Send a request and wait for the answer. An error leaves open whether it arrived."""
        fate = self._scheduler.point(operation, mutates)
        if fate is not None and mutates:
            self.delayed.append(Delayed(operation, effect))
            if fate is Fate.LATE:
                raise Injected(f"{operation}: no answer")
        result = self._observed(operation, effect) if self.is_observed else effect()
        self._scheduler.point(f"{operation} answered", False)
        return result

    def _observed(self, operation: str, effect: Callable[[], Result]) -> Result:
        """Note what the actor is told."""
        actor = self._scheduler.current
        assert actor is not None
        try:
            result = effect()
        except Exception as error:
            actor.seen = hash((actor.seen, operation, repr(error)))
            raise
        actor.seen = hash((actor.seen, operation, repr(result)))
        return result

    def land(self, index: int) -> None:
        """A delayed request arrives. What the store answers reaches nobody."""
        delayed = self.delayed.pop(index)
        self._scheduler.note(f"arrives late: {delayed.operation}")
        try:
            delayed.effect()
        except Exception as error:
            self._scheduler.note(f"  to no effect: {error!r}")

    def lose(self) -> None:
        """Nothing that is under way arrives any more."""
        self.delayed.clear()
