"""The transactional ids of the Kafka sink: few, used again, and found by the query's identity."""

from __future__ import annotations

import re
from dataclasses import dataclass

from assent.protocol.name import NUMBER, TransactionName, prefix

PLACES = 2
"""An id is used again so many places later; what its place was is known modulo this number."""

_NUMBERS = "-".join([NUMBER] * 4)
_PATTERN = re.compile(rf"assent-([0-9a-z]{{4,64}})-{_NUMBERS}-([0-9a-f]{{8}})")


@dataclass(frozen=True)
class TransactionalId:
    """Identity, term, place modulo `PLACES`, partition, attempt, and a mark of the sink.

    The number of ids is bounded within a run: tasks times attempts times two. A later run has
    another term and other ids, whatever its number of tasks; the broker forgets those of old runs.
    The mark keeps two Kafka sinks apart that share the epochs of one query.

    >>> name = TransactionName("3f2a9c0d", term=2, place=17, partition=4, nonce="5be1", attempt=1)
    >>> str(TransactionalId.of(name, mark="0a1b2c3d"))
    'assent-3f2a9c0d-2-1-4-1-0a1b2c3d'
    """

    identity: str
    term: int
    place: int
    partition: int
    attempt: int
    mark: str

    def __str__(self) -> str:
        numbers = f"{self.term}-{self.place}-{self.partition}-{self.attempt}"
        return f"{prefix(self.identity)}{numbers}-{self.mark}"

    @classmethod
    def of(cls, name: TransactionName, mark: str) -> TransactionalId:
        place = name.place % PLACES
        return cls(name.identity, name.term, place, name.partition, name.attempt, mark)

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Read the string form back; None if it is not one of ours."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        identity, term, place, partition, attempt, mark = match.groups()
        return cls(identity, int(term), int(place), int(partition), int(attempt), mark)
