"""What a task needs of a Kafka client, and what any client has to tell."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from assent.sinks.kafka_records import Records, Refusal

logger = logging.getLogger("assent.kafka")

TokenFunction = Callable[[str], tuple[object, ...]]
"""From `sasl.oauthbearer.config` to (token, time of its end[, principal[, extensions]])."""

QUEUE_WAIT = 0.005
FLUSH_WAIT = 0.1
TOPIC_WAIT = 0.05

_ACQUIRED = re.compile(r"\bAcquired PID\{Id:(\d+),Epoch:(\d+)\}")
_KEY_SHOWN = 64
_WARNINGS = 20
# What befalls messages because something else went wrong before.
_CONSEQUENCES = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")


class Client(Protocol):
    """A producer of librdkafka, however it is reached."""

    reports: Reports

    def begin(self, timeout: float) -> None:
        """Initialise the transactional id, which ends what was open under it, and begin.

        Nothing is left to do if that was done before; the broker is told of the first row.
        """

    def is_usable(self) -> bool:
        """Whether nothing has gone wrong so far."""

    def partition_count(self, topic: str, timeout: float) -> int | None:
        """How many partitions a topic has; None if there is no such topic."""

    def send(self, records: Records, partitions: npt.NDArray[np.int32]) -> list[Refusal]:
        """Hand rows over to be sent, waiting for room; gives those that cannot be.

        Raises at once when it is known that something handed over before was not delivered.
        """

    def flush(self, timeout: float) -> bool:
        """Wait until everything is delivered or known to have failed; false if time ran out."""

    def await_identity(self, timeout: float) -> ProducerIdentity | None:
        """The producer id and epoch; None if the library does not tell within that time."""

    def close(self) -> None:
        """Let go of threads, sockets and memory. A transaction that is open stays open."""


class ClientError(Exception):
    """A call of the client failed. `code` is the name of the error."""

    def __init__(self, code: str, reason: str, retriable: bool = False) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.retriable = retriable


@dataclass(frozen=True)
class ProducerIdentity:
    """What Kafka knows a transaction by, beside its transactional id."""

    producer_id: int
    epoch: int


@dataclass(frozen=True)
class Failure:
    """A record that was not delivered."""

    topic: str
    partition: int
    key: bytes | None
    size: int
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{describe(self.topic, self.partition, self.key, self.size)}: {self.reason}"


@dataclass
class Reports:
    """Everything that the library said: failures, its own log, the producer's identity.

    Bounded: of many failures the most telling one is kept. Clients fill it in while they are
    polled, so it has to hold no reference to them.
    """

    failed: int = 0
    worst: Failure | None = None
    transaction_error: str | None = None
    fatal_error: str | None = None
    last_error: str | None = None
    denied: bool = False
    identity: ProducerIdentity | None = None
    _logged: int = field(default=0, init=False)

    def on_failure(self, failure: Failure) -> None:
        self.failed += 1
        if self.worst is None or _weight(failure) > _weight(self.worst):
            self.worst = failure

    def on_error(self, code: str, reason: str, fatal: bool) -> None:
        if fatal:
            self.fatal_error = self.fatal_error or f"{reason} ({code})"
        # Trying again with the same credentials is of no use.
        self.denied = self.denied or code == "_AUTHENTICATION"
        if self.last_error is None or code != "_ALL_BROKERS_DOWN":
            self.last_error = f"{reason} ({code})"  # that all are down says nothing of why
        self._warn("%s (%s)", reason, code)

    def on_log(self, level: int, facility: str, text: str) -> None:
        """A line of the library's log, with the severity that syslog gives it."""
        if facility == "GETPID" and (match := _ACQUIRED.search(text)):
            # Sooner than the next statistics, which may be a second away.
            self._on_identity(ProducerIdentity(int(match[1]), int(match[2])))
        elif facility == "TXNERR" and level <= 3:
            self.transaction_error = self.transaction_error or text
        if level <= 4 and facility != "GETPID":
            self._warn("%s: %s", facility, text)
        else:
            # GETPID: the id's last transaction is still being completed, and it tries again.
            logger.debug("%s: %s", facility, text)

    def on_statistics(self, text: str) -> None:
        eos = json.loads(text).get("eos", {})
        if eos.get("producer_id", -1) >= 0:
            self._on_identity(ProducerIdentity(eos["producer_id"], eos["producer_epoch"]))

    @property
    def is_good(self) -> bool:
        """Whether a task may begin with the client that says this."""
        return self.problem is None and not self.denied

    @property
    def problem(self) -> str | None:
        """Why what was sent cannot count as delivered; None as long as nothing is wrong."""
        cause = self.fatal_error or self.transaction_error
        if self.worst is not None:
            more = f" ({self.failed} records were not delivered)" if self.failed > 1 else ""
            if cause is not None and self.worst.code in _CONSEQUENCES:
                return f"{cause}; {self.worst}{more}"
            return f"{self.worst}{more}"
        return cause

    def _on_identity(self, identity: ProducerIdentity) -> None:
        if self.identity is not None and self.identity != identity:
            # The handle would name another transaction than the one that holds the rows.
            self.fatal_error = self.fatal_error or (
                f"the producer changed from {self.identity} to {identity} within a transaction"
            )
        self.identity = identity

    def _warn(self, text: str, *arguments: object) -> None:
        self._logged += 1
        if self._logged <= _WARNINGS:
            logger.warning(text, *arguments)


def describe(topic: str, partition: int | None, key: bytes | None, size: int) -> str:
    """A record as an error shows it: where to, its key shortened, its size; never its value."""
    place = f"topic {topic!r}" + ("" if partition is None else f", partition {partition}")
    return f"{place}, key {shown_key(key)}, {size} bytes"


def shown_key(key: bytes | None) -> str:
    """A key as text if it is one, in hexadecimal if not; shortened; `none` for a null."""
    if key is None:
        return "none"
    try:
        text = repr(key.decode())
    except UnicodeDecodeError:
        text = f"0x{key.hex()}"
    return text if len(text) <= _KEY_SHOWN else f"{text[:_KEY_SHOWN]}… ({len(key)} bytes)"


def _weight(failure: Failure) -> tuple[bool, int]:
    # A request is refused as a whole: of a request that is too large, the largest row is it.
    large = failure.code in ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
    return failure.code not in _CONSEQUENCES, failure.size if large else 0
