"""What a row in the table of witnesses proves. Pure; the same for every database.

A witness is written in the very transaction that it witnesses, so it is there if and only if that
transaction is committed. Old ones are removed; from then on their absence proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from assent.protocol.verdict import Verdict


class State(Enum):
    """The states of a witness."""

    COMMITTED = "committed"
    """The rows are in the target."""
    STAGED = "staged"
    """The rows are in a staging table; nobody has said yet what is to become of them."""
    SEALED = "sealed"
    """They are committed, and wait there to be moved with all others of their epoch."""
    PRUNED = "pruned"
    """Not a witness: up to this place, witnesses of the sink have been removed."""


@dataclass(frozen=True)
class Found:
    """What a database knows of a transaction, read in this order, in separate transactions."""

    prepared: bool
    """It was found prepared before anything else was asked."""
    state: State | None
    """Its witness."""
    staging: bool = False
    """The staging table that the witness names is there."""
    pruned_through: int | None = None
    """Read together with the witness, from one snapshot."""


def verdict(place: int, found: Found) -> Verdict:
    """What became of a transaction of that place; UNKNOWN wherever there is a doubt."""
    if found.prepared:
        return Verdict.PENDING
    if found.state in (State.STAGED, State.SEALED) and not found.staging:
        return Verdict.ABORTED  # somebody has dropped the table: the rows can be written again
    if found.state is not None:
        return Verdict.PENDING if found.state is State.STAGED else Verdict.COMMITTED
    if found.pruned_through is not None and place <= found.pruned_through:
        return Verdict.UNKNOWN
    return Verdict.ABORTED
