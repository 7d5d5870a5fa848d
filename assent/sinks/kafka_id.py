"""The transactional ids of the Kafka sink: few, used again, and found by the query's identity."""

from __future__ import annotations

import re
from dataclasses import dataclass

from assent.protocol.name import NUMBER, TransactionName, prefix

PLACES = 2
"""An id is used again so many places later; what its place was is known modulo this number."""

_SLOT = r"(?:0|[1-9][0-9]{0,17}|w[0-9a-f]{16})-(?:0|[1-9][0-9]{0,17})"
_PATTERN = re.compile(rf"assent-([0-9a-z]{{4,64}})-{NUMBER}-{NUMBER}-({_SLOT})-([0-9a-f]{{8}})")


@dataclass(frozen=True)
class TransactionalId:
    """Identity, term, place modulo `PLACES`, a slot, and a mark of the sink.

    Nobody initialises the id of a transaction that is undecided or unfinished (rule 5): within a
    place no two share a slot, and two places later the earlier one is settled. The slot is the
    task's partition and attempt; or, for what a process makes ahead of its tasks, a name of that
    process and a number. An epoch of which a part was given up takes several places, and is not
    settled before the last: what is written again there has an id that is never used again.

    The number of ids is bounded within a run: two for each task's attempt, and for each of those
    that a process runs within an epoch; but for what is written again. A later run has another
    term and other ids, whatever its number of tasks; the broker forgets those of old runs. The
    mark keeps two Kafka sinks apart that share the epochs of one query.

    >>> name = TransactionName("3f2a9c0d", term=2, place=17, partition=4, nonce="5be1", attempt=1)
    >>> str(TransactionalId.of(name, mark="0a1b2c3d"))
    'assent-3f2a9c0d-2-1-4-1-0a1b2c3d'
    >>> again = TransactionName("3f2a9c0d", 2, 18, 4, nonce="77c1d2e3f4051627", again=True)
    >>> str(TransactionalId.of(again, mark="0a1b2c3d"))
    'assent-3f2a9c0d-2-0-w77c1d2e3f4051627-0-0a1b2c3d'
    >>> str(TransactionalId.ahead("3f2a9c0d", 2, 18, "5be10a1b2c3d4e5f", 0, mark="0a1b2c3d"))
    'assent-3f2a9c0d-2-0-w5be10a1b2c3d4e5f-0-0a1b2c3d'
    """

    identity: str
    term: int
    place: int
    slot: str
    mark: str

    def __str__(self) -> str:
        return f"{prefix(self.identity)}{self.term}-{self.place}-{self.slot}-{self.mark}"

    @classmethod
    def of(cls, name: TransactionName, mark: str) -> TransactionalId:
        """The id for a task."""
        if name.again:
            return cls.ahead(name.identity, name.term, name.place, name.nonce, 0, mark)
        slot = f"{name.partition}-{name.attempt}"
        return cls(name.identity, name.term, name.place % PLACES, slot, mark)

    @classmethod
    def ahead(
        cls, identity: str, term: int, place: int, process: str, number: int, mark: str
    ) -> TransactionalId:
        """An id of the owner of that nonce: a process, for whichever task it gets."""
        return cls(identity, term, place % PLACES, f"w{process}-{number}", mark)

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Read the string form back; None if it is not one of ours."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        identity, term, place, slot, mark = match.groups()
        return cls(identity, int(term), int(place), slot, mark)
