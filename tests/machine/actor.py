"""A process of the simulated cluster: runs one call, and stops, fails or dies where it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Crash(BaseException):
    """The driver is killed, with all its processes."""


class Death(BaseException):
    """One process dies; whoever waits for its answer gets an error."""


class Injected(OSError):
    """An operation failed, or its answer was lost."""


class Late(Injected):
    """As `Injected`; a creation may still take place later."""


class Kind(Enum):
    """What happens to an actor at an operation."""

    PARK = "park"
    FAIL = "fail"
    LATE = "late"
    DIE = "die"
    CRASH = "crash"


@dataclass(frozen=True)
class Fault:
    """Something that happens at an operation: the n-th whose name begins as said."""

    operation: str
    skip: int
    kind: Kind


class Actor(threading.Thread):
    """A thread that runs only while somebody waits for it, so that every history is repeatable."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.phase = "engine"
        self.finished = False
        self.error: BaseException | None = None
        self._work = work
        self._doomed: type[BaseException] | None = None
        self._schedule: list[Fault] = []
        self._skipped = 0
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)

    def resume(self, schedule: Sequence[Fault] = ()) -> None:
        """Go on until the schedule parks it, or to the end."""
        self._schedule, self._skipped = list(schedule), 0
        if self.ident is None:
            self.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self.finished:
            self.join()

    def kill(self) -> None:
        """End it before its next operation, whatever it is."""
        if not self.finished:
            self._doomed = Crash
            self.resume()

    def survive(self) -> None:
        """The process that died was not the one that runs this actor."""
        self._doomed = None

    def run(self) -> None:
        try:
            if self._doomed is None:
                self._work()
        except (Crash, Death):
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.finished = True
            self._back.release()

    def gate(self, operation: str) -> None:
        """Called at every operation, before and after it takes place."""
        if self._doomed is not None:  # the dead do nothing more, not even in a `finally`
            raise self._doomed
        if not self._schedule or not operation.startswith(self._schedule[0].operation):
            return
        if self._skipped < self._schedule[0].skip:
            self._skipped += 1
            return
        kind, self._skipped = self._schedule.pop(0).kind, 0
        if kind is Kind.PARK:
            self._back.release()
            self._turn.acquire()
            if self._doomed is not None:
                raise self._doomed
        elif kind is Kind.FAIL:
            raise Injected(f"injected at {operation}")
        elif kind is Kind.LATE:
            raise Late(f"injected at {operation}")
        else:
            self._doomed = Crash if kind is Kind.CRASH else Death
            raise self._doomed


def current() -> Actor | None:
    """The actor that runs now, if it is one."""
    thread = threading.current_thread()
    return thread if isinstance(thread, Actor) else None


def gate(operation: str) -> None:
    """An operation takes place: the actor that does it may not survive."""
    actor = current()
    if actor is not None:
        actor.gate(operation)
