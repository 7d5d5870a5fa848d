"""Puts the parts of the protocol together for one checkpoint location."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from assent.ledger.ledger import FOLDER, Ledger
from assent.ledger.local import LocalStore
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import ConfigurationError
from assent.protocol.listener import EpochListener
from assent.protocol.parallel import AtOnce, InBackground, in_threads, one_by_one
from assent.protocol.policy import Policy
from assent.protocol.sink import Sink
from assent.protocol.step import Trace, no_trace
from assent.spark.checkpoint import SparkCheckpoint


def assemble(
    location: str,
    sinks: Sequence[Sink[Any]],
    policy: Policy,
    listeners: Sequence[EpochListener],
) -> Coordinator:
    """The coordinator of the query that has its checkpoint there. Touches nothing yet."""
    ledger, checkpoint = open_checkpoint(location)
    trace = trace_from_environment()
    return Coordinator(
        ledger,
        sinks,
        checkpoint,
        policy,
        listeners,
        trace=trace,
        parallel=in_threads if trace is no_trace else one_by_one,
        later=InBackground() if trace is no_trace else AtOnce(),
    )


def open_checkpoint(location: str) -> tuple[Ledger, SparkCheckpoint]:
    """The ledger in a checkpoint, and the checkpoint itself."""
    store = LocalStore(location)
    return Ledger(LocalStore(f"{location.rstrip('/')}/{FOLDER}")), SparkCheckpoint(store)


def refuse_unfinished(location: str) -> None:
    """A query that gives up exactly_once must not leave a decided epoch behind half committed."""
    ledger, checkpoint = open_checkpoint(location)
    term = ledger.newest_term()
    newest = ledger.tail(term).newest if term else None
    if newest is not None and not checkpoint.is_committed(newest.epoch):
        raise ConfigurationError(
            f"epoch {newest.epoch} was decided under exactly_once and is not finished (ledger at "
            f"{ledger.location}); run the query once more with deliveryGuarantee=exactly_once "
            "before you lower the guarantee"
        )


def trace_from_environment() -> Trace:
    """Crash points, for tests that stop a process at an exact instant; nothing otherwise."""
    if "ASSENT_CRASH" not in os.environ:
        return no_trace
    from assent.testing import crash

    return crash.trace_from_environment()
