"""The brokers that coordinate transactions or consumer groups: found, remembered, asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import kafka.errors
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from assent.protocol.errors import ConfigurationError, RetriableError
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_connection import Address, Connection, ConnectionLost
from assent.sinks.kafka_verdict import Answer, classify

_BATCHED_VERSION = 4
_KEPT = 10_000
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


class Patience:
    """How long one call goes on trying."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._seconds = seconds

    def until_done(self, attempt: Callable[[], str | None], failed: str) -> None:
        """Repeat an attempt, which gives a reason to go on or None; RetriableError at the end."""
        pause = _FIRST_PAUSE
        while True:
            try:
                reason = attempt()
            except ConnectionLost as error:
                reason = str(error)
            if reason is None:
                return
            if time.monotonic() + pause >= self.deadline:
                raise RetriableError(f"{failed} within {self._seconds:g} s: {reason}")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


_NEEDED = {
    CoordinatorType.TRANSACTION: "the operations Describe and Write on its transactional ids",
    CoordinatorType.GROUP: "the operation Read on the consumer group and on its topics",
}


class Coordinators:
    """Each transactional id, or group, has a broker that coordinates it; which one may change."""

    def __init__(
        self, brokers: Brokers, kind: CoordinatorType = CoordinatorType.TRANSACTION
    ) -> None:
        self._brokers = brokers
        self._kind = kind
        self._known: dict[str, Address] = {}
        self._lock = threading.Lock()

    def ask(self, key: str, make: Callable[[Connection], Any], patience: Patience) -> Any:
        """Ask the coordinator of an id: one round trip, once it is known."""
        with self._lock:
            address = self._known.get(key)
        if address is None:
            address = self._find(key, patience)
        try:
            return self._brokers.ask(address, make, patience.deadline)
        except ConnectionLost:
            self._forget(key)
            raise

    def meaning(self, code: int, key: str | None = None) -> Answer:
        """What an answer calls for. A coordinator that has moved is forgotten."""
        meaning = classify(code)
        if meaning is Answer.REFUSED:
            of = f" {key!r}" if key else "s"
            raise ConfigurationError(
                f"the Kafka broker refused a request about {self._kind.name.lower()}{of}: "
                f"{code_name(code)}. The user needs {_NEEDED[self._kind]}"
            )
        if meaning is Answer.MOVED and key is not None:
            self._forget(key)
        return meaning

    def _find(self, key: str, patience: Patience) -> Address:
        def make(connection: Connection) -> Any:
            version = connection.version(FindCoordinatorRequest)
            if version < _BATCHED_VERSION:
                raise ConfigurationError(
                    f"the Kafka broker {connection.address} is older than 3.0, which is needed"
                )
            return FindCoordinatorRequest(
                version=version,
                key_type=self._kind.value,
                coordinator_keys=[key],
            )

        found: list[Address] = []

        def attempt() -> str | None:
            (answer,) = self._brokers.ask_any(make, patience.deadline).coordinators
            if self.meaning(answer.error_code, key) is not Answer.DONE:
                return code_name(answer.error_code)
            found.append(Address(answer.host, answer.port))
            return None

        patience.until_done(attempt, f"the coordinator of {key!r} was not found")
        with self._lock:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found[0]
        return found[0]

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)


def code_name(code: int) -> str:
    """The name of an error code, as Kafka's documentation spells it."""
    error = kafka.errors.for_code(code)
    return str(getattr(error, "message", None) or error.__name__)
