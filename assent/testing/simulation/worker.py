"""Processes that run tasks one after the other, and make ids ready ahead of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from assent.protocol.errors import AssentError
from assent.protocol.name import TransactionName
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_forecast import Forecast
from assent.testing.simulation.scheduler import Injected


@dataclass
class Ahead:
    """An id that is initialised before its task is known."""

    name: TransactionName
    """Of the task once it is known: a copy of the request that comes later is that task's own."""
    transactional_id: str
    producer: ProducerIdentity | None = None


@dataclass
class Worker:
    """One process. It runs one task at a time; if it is killed, it never runs another."""

    forecast: Forecast
    is_free: bool = False
    ahead: Ahead | None = None


Initialise = Callable[[Ahead], ProducerIdentity]


@dataclass
class Workers:
    """All that have ever been."""

    mark: str
    _all: list[Worker] = field(default_factory=list)

    def begin(self, name: TransactionName) -> tuple[Worker, Ahead | None]:
        """The process in which a task begins, and what it has ready for it."""
        free = [each for each in self._all if each.is_free]
        if free:
            worker = free[0]
        else:
            process = f"{len(self._all):016x}"
            worker = Worker(Forecast(name.identity, self.mark, process))
            self._all.append(worker)
        worker.is_free = False
        worker.forecast.saw(name)
        ahead, worker.ahead = worker.ahead, None
        if ahead is None or (ahead.name.term, ahead.name.place) != (name.term, name.place):
            return worker, None
        ahead.name = name
        return worker, ahead

    def end(self, worker: Worker, name: TransactionName, initialise: Initialise) -> None:
        """A task has ended well, and the process makes an id ready for its next one."""
        expected = worker.forecast.next()
        if expected is not None:
            place, wanted = expected
            following = TransactionName(
                wanted.identity, wanted.term, place, name.partition, "0000", name.attempt
            )
            ahead = Ahead(following, str(wanted))
            try:
                ahead.producer = initialise(ahead)
                worker.ahead = ahead
            except (AssentError, Injected):
                pass  # the task makes one of its own
        worker.is_free = True
