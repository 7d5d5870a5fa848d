"""The choices that an operator makes about an epoch's life."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OnTimeout(Enum):
    """What happens to decided transactions that the store has given up (option `onTimeout`)."""

    REWRITE = "rewrite"
    """Spark replays the epoch and the partitions that are gone are written again."""
    FAIL = "fail"
    """The query stops, and does so again at each start, until an operator has settled it."""
    IGNORE = "ignore"
    """Past the store's own timeout the loss is recorded and logged, and the query goes on.
    A transaction that was given up for another reason is still rewritten."""


@dataclass(frozen=True)
class Policy:
    """Retention, patience and the answer to a timeout."""

    retained_epochs: int = 100
    commit_timeout: float = 300.0
    timeout_warning_ratio: float = 0.8
    on_timeout: OnTimeout = OnTimeout.REWRITE
