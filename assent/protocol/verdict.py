"""What a store says became of a transaction."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """The answer of a store about one handle.

    UNKNOWN is an answer too: the store has forgotten. It is never read as one of the others.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    PENDING = "pending"
    UNKNOWN = "unknown"
