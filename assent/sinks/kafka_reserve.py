"""A producer that is ready before a task needs it, made while the process has nothing to do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from assent.protocol.name import TransactionName
from assent.sinks.kafka_client import Client
from assent.sinks.kafka_forecast import Forecast
from assent.sinks.kafka_id import TransactionalId

logger = logging.getLogger("assent.kafka")

IDLE_SECONDS = 60.0
"""What nobody has taken by then is closed: it has threads and connections."""


@dataclass(frozen=True)
class Ready:
    """A client that a task can begin with at once."""

    client: Client
    transactional_id: TransactionalId | None


@dataclass(frozen=True)
class Reserve:
    """At most one producer, for the next task of one query and sink in this process.

    With transactions it is a new one, under an id that belongs to this process alone: connected
    and initialised, which takes most of the time of a small epoch. Without, it is the last one
    again. Whatever goes wrong here costs time: the task makes a producer of its own.
    """

    forecast: Forecast
    idle_seconds: float = IDLE_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _kept: list[_Coming] = field(default_factory=list, init=False)

    def take(self, name: TransactionName, purpose: Hashable) -> Ready | None:
        """What is kept for that purpose, as soon as it is ready; None if nothing is, or it fails.

        What is kept for another one is closed: it did not come.
        """
        with self._lock:
            self.forecast.saw(name)
            coming = self._kept.pop() if self._kept else None
        if coming is None:
            return None
        if coming.purpose != purpose:
            coming.settled.set()
            return None
        coming.taken = True
        coming.settled.set()
        coming.made.wait()
        if coming.client is None:
            return None
        if not coming.client.is_usable():
            coming.client.close()
            return None
        return Ready(coming.client, coming.transactional_id)

    def expected(self) -> tuple[int, TransactionalId] | None:
        """The place of the next task and an id for it, if a forecast can be made."""
        with self._lock:
            return None if self._kept else self.forecast.next()

    def keep(
        self,
        purpose: Hashable,
        make: Callable[[], Client],
        transactional_id: TransactionalId | None = None,
    ) -> bool:
        """Have one made in the background, and keep it. False if there is one already."""
        coming = _Coming(purpose, transactional_id)
        with self._lock:
            if self._kept:
                return False
            self._kept.append(coming)
        # Nobody waits for it when the process ends: the broker is told nothing by that.
        threading.Thread(
            target=self._prepare, args=(coming, make), name="assent-reserve", daemon=True
        ).start()
        return True

    def _prepare(self, coming: _Coming, make: Callable[[], Client]) -> None:
        try:
            coming.client = make()
        except Exception as error:
            logger.info("no producer could be made ahead of need: %s", error)
        coming.made.set()
        if not coming.settled.wait(self.idle_seconds):
            with self._lock:
                if coming in self._kept:
                    self._kept.remove(coming)
                    coming.settled.set()
        coming.settled.wait()  # otherwise it is being taken this very moment
        if coming.client is not None and not coming.taken:
            coming.client.close()


@dataclass(eq=False)
class _Coming:
    """A producer that is being made, or waits to be taken."""

    purpose: Hashable
    transactional_id: TransactionalId | None
    client: Client | None = None
    made: threading.Event = field(default_factory=threading.Event)
    taken: bool = False
    settled: threading.Event = field(default_factory=threading.Event)
    """Whether it is taken is known."""
