"""What the protocol has to know of the engine's own checkpoint."""

from __future__ import annotations

from typing import Protocol


class Checkpoint(Protocol):
    """The engine's record of what it will replay and what it never will again."""

    def query(self) -> str:
        """The engine's id of the query, which lives as long as its checkpoint."""

    def newest_epoch(self) -> int | None:
        """The newest epoch whose input is fixed: the one that runs now or comes next."""

    def digest(self, epoch: int) -> str | None:
        """A digest of the fixed input of an epoch; None if the engine does not know it."""

    def is_committed(self, epoch: int) -> bool:
        """Whether the engine has finished the epoch and will never replay it."""
