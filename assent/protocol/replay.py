"""Spark's replay, compared with what the ledger holds (rule 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assent.protocol.checkpoint import Checkpoint
from assent.protocol.errors import ReplayError
from assent.protocol.record import Decision

if TYPE_CHECKING:
    from assent.ledger.tail import Tail

_RESTORED = (
    "An older state of the checkpoint was restored, or part of it was deleted, and going on would "
    "lose or repeat rows. Restore the checkpoint as a whole, with its _assent folder, or start "
    "with a new checkpointLocation"
)


@dataclass(frozen=True)
class Replay:
    """Refuses what no honest replay is: epochs only grow, and the input of one never changes."""

    checkpoint: Checkpoint
    location: str
    """Of the ledger, for messages."""

    def running(self, tail: Tail) -> int | None:
        """The epoch that Spark is at, if there is one: the newest decided one, or a later one."""
        newest = self.checkpoint.newest_epoch()
        if newest is None or tail.newest is None:
            return newest
        if newest < tail.newest.epoch:
            raise ReplayError(
                f"Spark is at epoch {newest}, but epoch {tail.newest.epoch} is decided in the "
                f"ledger at {self.location}. {_RESTORED}"
            )
        if newest == tail.newest.epoch:
            self.refuse_other_input(tail.newest.decision)
        return newest

    def refuse_other_input(self, decision: Decision) -> None:
        """ReplayError if the epoch was decided for another input than it has now."""
        if self.digest(decision.epoch) != decision.digest:
            raise ReplayError(
                f"epoch {decision.epoch} was decided for other input than what Spark's offset log "
                f"now holds for it (ledger at {self.location}). {_RESTORED}"
            )

    def digest(self, epoch: int) -> str:
        """Of the input of an epoch that is running."""
        digest = self.checkpoint.digest(epoch)
        if digest is None:
            raise ReplayError(
                f"Spark's offset log has no entry for epoch {epoch}, which is running. {_RESTORED}"
            )
        return digest
