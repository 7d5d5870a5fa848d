"""The delivery guarantees."""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """What a sink promises about each row of an epoch (option `deliveryGuarantee`)."""

    EXACTLY_ONCE = "exactly_once"
    """Every row once, whatever fails. Needs a durable checkpoint."""
    AT_LEAST_ONCE = "at_least_once"
    """Every row, some of them twice after a failure. Each task commits on its own."""
    NONE = "none"
    """Nothing: rows may be lost and repeated. Nothing is flushed."""
