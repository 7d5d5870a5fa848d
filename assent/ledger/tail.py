"""The end of the ledger, as far back as anybody has to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assent.ledger.term import Term
from assent.protocol.record import Amendment, Author, DecidedEpoch, Decision, RecordKey


@dataclass(frozen=True)
class Tail:
    """The newest decided epoch and every older one that is not known to be complete.

    `decided` is in the order of epochs; `next_place` is where the term's next record goes; a
    term that was closed gets none.
    """

    term: Term
    next_place: int
    closed_by: Author | None
    decided: tuple[DecidedEpoch, ...]

    @classmethod
    def of(
        cls,
        term: Term,
        next_place: int,
        closed_by: Author | None,
        records: Sequence[Decision | Amendment],
    ) -> Tail:
        """The tail that records make, in their order; those of complete epochs are left out."""
        decisions = [record for record in records if isinstance(record, Decision)]
        amendments = [record for record in records if isinstance(record, Amendment)]
        through = decisions[-1].completed_through if decisions else None
        decided = tuple(
            DecidedEpoch(
                decision,
                tuple(amendment for amendment in amendments if amendment.amends == decision.key),
            )
            for decision in decisions
            if decision is decisions[-1] or through is None or decision.epoch > through
        )
        return cls(term, next_place, closed_by, decided)

    @property
    def next_key(self) -> RecordKey:
        return RecordKey(self.next_place, self.term.number)

    @property
    def newest(self) -> DecidedEpoch | None:
        return self.decided[-1] if self.decided else None

    @property
    def completed_through(self) -> int | None:
        """The newest epoch that the records themselves call complete."""
        return self.newest.decision.completed_through if self.newest else None

    def records(self) -> list[Decision | Amendment]:
        """All records in the tail, in their order."""
        records: list[Decision | Amendment] = []
        for epoch in self.decided:
            records += [epoch.decision, *epoch.amendments]
        return sorted(records, key=lambda record: record.key)

    def keys(self) -> tuple[RecordKey, ...]:
        """The keys of all records in the tail, in their order."""
        return tuple(record.key for record in self.records())


def is_covered(records: Sequence[Decision | Amendment]) -> bool:
    """Whether all epochs before the oldest of these records are known to be complete."""
    decisions = [record for record in records if isinstance(record, Decision)]
    if not decisions or records[0] is not decisions[0]:
        return False
    through = decisions[-1].completed_through
    return through is not None and decisions[0].epoch <= through + 1
