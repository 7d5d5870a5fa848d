"""The options that all sinks share, whatever the front-end."""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.listener import EpochListener
from assent.protocol.policy import OnTimeout, Policy
from assent.sinks.option import (
    Option,
    boolean,
    choice,
    positive_integer,
    ratio,
    text,
    timeout,
)

logger = logging.getLogger("assent")

OPTIONS: tuple[Option, ...] = (
    Option(
        "checkpointLocation",
        text,
        None,
        "where Spark keeps the query's checkpoint, and Assent its ledger in it",
    ),
    Option(
        "deliveryGuarantee",
        choice(*(guarantee.value for guarantee in Guarantee)),
        Guarantee.EXACTLY_ONCE.value,
        "what is promised about each row",
    ),
    Option(
        "allowDowngrade",
        boolean,
        False,
        "without a durable checkpoint, go on with at_least_once instead of refusing",
    ),
    Option("retainedEpochs", positive_integer, 100, "how many epochs the ledger keeps"),
    Option("commitTimeout", timeout, 300.0, "how long to go on trying to commit a decided epoch"),
    Option(
        "timeoutWarningRatio",
        ratio,
        0.8,
        "warn when a transaction is older than this part of its timeout",
    ),
    Option(
        "onTimeout",
        choice(*(answer.value for answer in OnTimeout)),
        OnTimeout.REWRITE.value,
        "what to do when the store has given a decided transaction up",
    ),
    Option(
        "listeners",
        text,
        "",
        "comma-separated `module:name` of classes without arguments or objects, each an "
        "EpochListener",
    ),
    Option(
        "commitOffsets",
        text,
        None,
        "consumer group to which a Kafka source's offsets are published when an epoch is complete",
    ),
    Option(
        "commitOffsets.kafka",
        text,
        {},
        "settings of the client for commitOffsets; by default those of the Kafka sink",
        secret=True,
        prefix=True,
    ),
)

_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}-[0-9a-f-]{27}/?$")
"""How Spark names the checkpoint that it makes itself and deletes when the query stops."""


@dataclass(frozen=True)
class Settings:
    """The shared options, read and checked."""

    checkpoint_location: str | None
    guarantee: Guarantee
    policy: Policy
    listeners: tuple[str, ...] = ()
    offsets_group: str | None = None
    offsets_cluster: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(
        cls, values: Mapping[str, Any], *, location: str | None = None, sink: str
    ) -> Settings:
        """From what `read_options` gave; `location` is the checkpoint that Spark uses."""
        given = values["checkpointLocation"]
        return cls(
            given or location,
            _guarantee(values, given or location, sink),
            Policy(
                values["retainedEpochs"],
                values["commitTimeout"],
                values["timeoutWarningRatio"],
                OnTimeout(values["onTimeout"]),
            ),
            _names(values["listeners"]),
            values["commitOffsets"],
            values["commitOffsets.kafka"],
        )


def _guarantee(values: Mapping[str, Any], location: str | None, sink: str) -> Guarantee:
    guarantee = Guarantee(values["deliveryGuarantee"])
    durable = location is not None and not _TEMPORARY.search(location)
    if guarantee is not Guarantee.EXACTLY_ONCE or durable:
        return guarantee
    if not values["allowDowngrade"]:
        raise ConfigurationError(
            f"{sink}: deliveryGuarantee is exactly_once, which needs a durable checkpoint, and the "
            "sink was given none. Set it on the writer itself: "
            '.option("checkpointLocation", "/a/durable/path"); a default set by '
            "spark.sql.streaming.checkpointLocation does not reach the sink. Or accept duplicates "
            "after a failure: deliveryGuarantee=at_least_once, or allowDowngrade=true"
        )
    logger.warning(
        "%s: DOWNGRADED from exactly_once to at_least_once, because there is no durable "
        "checkpoint and allowDowngrade is true: a failure will repeat rows",
        sink,
    )
    return Guarantee.AT_LEAST_ONCE


def _names(listeners: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listeners.split(",") if name.strip())
    for name in names:
        load_listener(name)
    return names


@functools.cache
def load_listener(name: str) -> EpochListener:
    """The listener that `module:name` means: one object in each process."""
    module, _, attribute = name.partition(":")
    expected = f"option listeners has {name!r}; expected module:name of an EpochListener"
    try:
        found = getattr(importlib.import_module(module), attribute)
        listener = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigurationError(f"{expected} ({type(error).__name__}: {error})") from error
    if not isinstance(listener, EpochListener):
        raise ConfigurationError(f"{expected}, found a {type(listener).__name__}")
    return listener
