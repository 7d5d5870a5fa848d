"""The plain way to Kafka: one call of confluent-kafka's Producer for each row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import numpy as np
import numpy.typing as npt

from assent.protocol.errors import ConfigurationError, RetriableError
from assent.sinks.kafka_bytes import Bytes
from assent.sinks.kafka_client import (
    FLUSH_WAIT,
    QUEUE_WAIT,
    TOPIC_WAIT,
    ClientError,
    Failure,
    ProducerIdentity,
    Reports,
    TokenFunction,
)
from assent.sinks.kafka_records import Records, Refusal
from assent.sinks.kafka_settings import Settings, is_secret

_NO_SUCH_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_STOPPED = ("_STATE", "_FATAL", "_FENCED")


class PlainClient:
    """For where the C library cannot be reached: the same behaviour, several times the CPU."""

    def __init__(self, settings: Settings, token: TokenFunction | None = None) -> None:
        self.reports = reports = Reports()
        self._begun = False
        callbacks: dict[str, Any] = {
            "stats_cb": reports.on_statistics,
            "error_cb": lambda error: _on_error(reports, error),
            "on_delivery": lambda error, message: _on_delivery(reports, error, message),
            "logger": _Log(reports),
        }
        if token is not None:
            callbacks["oauth_cb"] = token
        given: dict[str, Any] = {
            name: value for name, value in settings.items() if name != "log.queue"
        }
        # The one setting that confluent-kafka looks at itself, and wants as a boolean.
        given["delivery.report.only.error"] = True
        try:
            self._producer: Any = ck.Producer({**given, **callbacks})
        except (ck.KafkaException, ValueError, TypeError) as error:
            reason = _reason(error)
            for name, value in settings.items():
                if value and is_secret(name):
                    reason = reason.replace(value, "…")
            # Without the cause, whose message may repeat a secret.
            raise ConfigurationError(f"Kafka's client refuses its settings: {reason}") from None

    def begin(self, timeout: float) -> None:
        if self._begun:
            return
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._producer.init_transactions(min(1.0, max(0.001, deadline - time.monotonic())))
                break
            except ck.KafkaException as error:
                self._poll(0)
                again = error.args[0].retriable() and not self.reports.denied
                if not again or time.monotonic() >= deadline:
                    raise ClientError(_name(error), _reason(error)) from error
        self._producer.begin_transaction()
        self._begun = True
        self._poll(0)

    def is_usable(self) -> bool:
        self._poll(0)
        return self.reports.is_good

    def partition_count(self, topic: str, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._producer.list_topics(topic, timeout).topics[topic]
            except ck.KafkaException as error:
                raise ClientError(_name(error), _reason(error)) from error
            if found.error is None and found.partitions:
                return len(found.partitions)
            name = found.error.name() if found.error else "LEADER_NOT_AVAILABLE"
            if time.monotonic() >= deadline:
                if name in _NO_SUCH_TOPIC:
                    return None
                raise ClientError(name, found.error.str() if found.error else name)
            if name not in (*_NO_SUCH_TOPIC, "LEADER_NOT_AVAILABLE"):
                raise ClientError(name, found.error.str())
            self._poll(TOPIC_WAIT)

    def send(self, records: Records, partitions: npt.NDArray[np.int32]) -> list[Refusal]:
        self._poll(0)
        values = Bytes.of(records.values)
        keys = None if records.keys is None else Bytes.of(records.keys)
        headers = None if records.headers is None else records.headers.to_pylist()
        refused: list[Refusal] = []
        for row, partition in enumerate(partitions.tolist()):
            more: dict[str, Any] = {}
            if records.timestamps is not None:
                more["timestamp"] = int(records.timestamps[row])
            if headers is not None and headers[row]:
                more["headers"] = [(pair["key"], pair["value"]) for pair in headers[row]]
            key = None if keys is None else keys.at(row)
            refusal = self._produce(row, records.topic, values.at(row), key, partition, more)
            if refusal is not None:
                refused.append(refusal)
        return refused

    def flush(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._serve(self._producer.flush, FLUSH_WAIT):
            if self.reports.problem is not None or time.monotonic() >= deadline:
                return self.reports.problem is not None
        return True

    def await_identity(self, timeout: float) -> ProducerIdentity | None:
        deadline = time.monotonic() + timeout
        while self.reports.identity is None and time.monotonic() < deadline:
            self._poll(QUEUE_WAIT)
        return self.reports.identity

    def close(self) -> None:
        if self._producer is None:
            return
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        # Not Producer.close: it aborts a transaction that is open. Without its last reference
        # the object ends its threads and says nothing to the broker.
        self._producer = None

    def _poll(self, seconds: float) -> None:
        self._serve(self._producer.poll, seconds)

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Have the callbacks called; a fatal error leaves the call as an exception."""
        try:
            return call(seconds)
        except ck.KafkaException as error:
            self.reports.on_error(_name(error), _reason(error), fatal=True)
            return 1

    def _produce(
        self,
        row: int,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        more: dict[str, Any],
    ) -> Refusal | None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, **more)
                return None
            except BufferError:
                self._poll(QUEUE_WAIT)
                if self.reports.problem is not None:
                    raise RetriableError(
                        f"Kafka did not take what was sent: {self.reports.problem}"
                    ) from None
            except ck.KafkaException as error:
                if _name(error) in _STOPPED:
                    self._poll(0)
                    raise RetriableError(
                        f"the transaction cannot go on: {self.reports.problem or _reason(error)}"
                    ) from error
                return Refusal(row, _name(error), _reason(error))


class _Log:
    """What confluent-kafka takes for a logger: called with each line of the library's log."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def log(self, level: int, _template: str, facility: str, _name: str, text: str) -> None:
        # Python's levels back to those of syslog, as the library speaks of them.
        severity = 3 if level >= 40 else 4 if level >= 30 else 6 if level >= 20 else 7
        self._reports.on_log(severity, facility, text)


# Functions without a reference to the client, so that it is freed as soon as it is let go.


def _on_error(reports: Reports, error: Any) -> None:
    reports.on_error(error.name(), error.str(), error.fatal())


def _on_delivery(reports: Reports, error: Any, message: Any) -> None:
    if error is not None:
        key = message.key()
        size = len(message.value() or b"") + len(key or b"")
        reports.on_failure(
            Failure(message.topic(), message.partition(), key, size, error.name(), error.str())
        )


def _name(error: Exception) -> str:
    given = error.args[0] if error.args else None
    return str(given.name()) if isinstance(given, ck.KafkaError) else type(error).__name__


def _reason(error: Exception) -> str:
    given = error.args[0] if error.args else None
    return str(given.str()) if isinstance(given, ck.KafkaError) else str(error)
