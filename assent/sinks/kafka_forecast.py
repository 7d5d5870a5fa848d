"""Which transaction a process will most likely be asked for next."""

from __future__ import annotations

from dataclasses import dataclass, field

from assent.protocol.name import TransactionName, nonce
from assent.sinks.kafka_id import TransactionalId


@dataclass
class Forecast:
    """Learns from the tasks of one query that a process runs, one after the other.

    An id for place p is given out once a task of place p - 1 or p was seen, under the same term.
    By then everything of place p - 2, which may have used the same id, is settled: no place is
    planned before the last one is. And nobody else has ids with this process's name.
    """

    identity: str
    mark: str
    process: str = field(default_factory=nonce)

    _term: int = field(default=-1, init=False)
    _place: int = field(default=-1, init=False)
    _begun: int = field(default=0, init=False)
    _begun_before: int = field(default=0, init=False)
    _made: dict[int, int] = field(default_factory=dict, init=False)

    def saw(self, name: TransactionName) -> None:
        """A task begins. One of an earlier place comes too late to tell anything."""
        if (name.term, name.place) < (self._term, self._place):
            return
        if (name.term, name.place) > (self._term, self._place):
            follows = (name.term, name.place) == (self._term, self._place + 1)
            self._begun_before = self._begun if follows else 0
            if not follows:
                self._made.clear()
            self._made.pop(self._place, None)
            self._term, self._place, self._begun = name.term, name.place, 0
        self._begun += 1

    def next(self) -> tuple[int, TransactionalId] | None:
        """The place of the next task, and an id for it that is not in use.

        None for a process that has not seen two places of a term one after the other: perhaps it
        is made anew for every epoch, and ids made by it would have no use, and no end.
        """
        if not self._begun_before:
            return None
        more_here = self._begun < self._begun_before
        place = self._place if more_here else self._place + 1
        number = self._made.get(place, 0)
        self._made[place] = number + 1
        return place, TransactionalId.ahead(
            self.identity, self._term, place, self.process, number, self.mark
        )
