"""The end of the ledger, as far back as anybody has to look."""

from __future__ import annotations

from dataclasses import dataclass

from assent.protocol.record import Author, DecidedEpoch, RecordKey


@dataclass(frozen=True)
class Tail:
    """The newest decided epoch and every older one that is not known to be complete.

    `decided` is in the order of epochs; `next_place` is where the term's next record goes; a
    term that was closed gets none.
    """

    term: int
    next_place: int
    closed_by: Author | None
    decided: tuple[DecidedEpoch, ...]

    @property
    def newest(self) -> DecidedEpoch | None:
        return self.decided[-1] if self.decided else None

    @property
    def completed_through(self) -> int | None:
        """The newest epoch that the records themselves call complete."""
        return self.newest.decision.completed_through if self.newest else None

    def keys(self) -> tuple[RecordKey, ...]:
        """The keys of all records in the tail, in their order."""
        keys = [epoch.decision.key for epoch in self.decided]
        keys += [amendment.key for epoch in self.decided for amendment in epoch.amendments]
        return tuple(sorted(keys))
