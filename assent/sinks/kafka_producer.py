"""One task's producer: from records to a transaction that is flushed, checked and left open."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.sinks.kafka_bytes import Bytes
from assent.sinks.kafka_client import (
    Client,
    ClientError,
    ProducerIdentity,
    TokenFunction,
    describe,
)
from assent.sinks.kafka_partitioner import Partitioner
from assent.sinks.kafka_partitions import Partitions
from assent.sinks.kafka_records import HEADERS, Records, Refusal
from assent.sinks.kafka_settings import Settings

logger = logging.getLogger("assent.kafka")

CLIENT_VARIABLE = "ASSENT_KAFKA_CLIENT"
"""`native` or `plain` forces one way of reaching librdkafka; anything else means the best."""

TOPIC_SECONDS = 5.0
"""How long a topic may take to become known; one that was just created takes a moment."""

_IDENTITY_SECONDS = 10.0
_EXTRA_FLUSH_SECONDS = 30.0
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"
_BATCH_HINT = (
    "; the topic takes no batch above its max.message.bytes: raise that, or set "
    "kafka.message.max.bytes and kafka.batch.size below it"
)
# A record takes some bytes beside key, value and headers.
_OVERHEAD = 512


def connect(settings: Settings, token: TokenFunction | None = None, kind: str = "auto") -> Client:
    """A client for these settings: the fast one, or the plain one where that cannot be had."""
    wanted = os.environ.get(CLIENT_VARIABLE, kind)
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the Kafka sink needs confluent-kafka: pip install 'assent[kafka]'"
        ) from error
    if wanted != "plain":
        from assent.sinks.kafka_library import LibraryError, library

        try:
            library()
        except LibraryError as error:
            if wanted == "native":
                raise ConfigurationError(
                    f"the C library inside confluent-kafka cannot be used: {error}"
                ) from error
            logger.warning(
                "the C library inside confluent-kafka cannot be used (%s); rows are handed over "
                "one by one, which is slower and no less safe",
                error,
            )
        else:
            from assent.sinks.kafka_native import NativeClient

            return NativeClient(settings, token)
    from assent.sinks.kafka_plain import PlainClient

    return PlainClient(settings, token)


class TaskProducer:
    """Writes the rows of one task into Kafka, under one of the three guarantees.

    `exactly_once`: a transaction that `finish` leaves open, to be ended by whoever holds its
    identity. `at_least_once`: `finish` returns when every row is delivered. `none`: rows are
    handed over; whether they arrive is not looked at.

    A row that cannot be sent fails the task with an error that names topic, key and size; or,
    if there is a dead-letter topic, goes there, in the same transaction, with headers that say
    why. That holds for what is known before sending: no such topic or partition, larger than
    `message.max.bytes`. What only the broker can refuse fails the task in any case, because
    librdkafka then has the transaction aborted.
    """

    def __init__(
        self,
        client: Client,
        guarantee: Guarantee,
        *,
        transaction_timeout: float = 60.0,
        partitioner: Partitioner | None = None,
        dead_letter_topic: str | None = None,
        message_bytes: int,
    ) -> None:
        self.rows = 0
        self.dead_letters = 0
        self._client: Client | None = client
        self._guarantee = guarantee
        self._timeout = transaction_timeout
        self._partitioner = partitioner or Partitioner()
        self._dead_letter_topic = dead_letter_topic
        self._message_bytes = message_bytes
        self._counts: dict[str, int | None] = {}
        self._written: dict[str, npt.NDArray[np.bool_]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self, timeout: float | None = None) -> None:
        """Open the transaction; nothing to do under the other guarantees."""
        if self._guarantee is Guarantee.EXACTLY_ONCE:
            try:
                self._open.begin(self._timeout if timeout is None else timeout)
            except ClientError as error:
                last = self._open.reports.last_error
                hint = f"; the last that was heard: {last}" if last else ""
                raise RetriableError(f"no transaction could be opened: {error}{hint}") from error

    def write(self, records: Records) -> None:
        """Send rows. Returns when they are handed over, with room left for more."""
        self.rows += len(records)
        count = self._count(records.topic)
        if count is None:
            reason = "there is no such topic"
            every = np.arange(len(records))
            self._refuse(
                records,
                [Refusal(int(row), "UNKNOWN_TOPIC_OR_PART", reason) for row in every],
                records.partitions,
            )
            return
        partitions = self._partitioner.place(
            records.topic, count, records.keys, records.values, records.partitions
        )
        wrong = (partitions < 0) | (partitions >= count)
        if wrong.any():
            reason = f"there is no such partition: the topic has 0 to {count - 1}"
            refused = np.flatnonzero(wrong)
            self._refuse(
                records,
                [Refusal(int(row), "_UNKNOWN_PARTITION", reason) for row in refused],
                partitions,
            )
            good = np.flatnonzero(~wrong)
            records, partitions = records.take(good), partitions[good]
        self._written.setdefault(records.topic, np.zeros(count, np.bool_))[partitions] = True
        refusals = self._open.send(records, partitions)
        if refusals:
            self._refuse(records, [self._explained(each) for each in refusals], partitions)

    @property
    def partitions(self) -> Partitions:
        """All partitions that rows were sent to."""
        return {
            topic: tuple(map(int, np.flatnonzero(written)))
            for topic, written in self._written.items()
        }

    def finish(self) -> ProducerIdentity | None:
        """Make sure that every row is delivered; gives the identity of the open transaction.

        Raises if a single row is not: only delivery reports tell, and all of them were looked at.
        """
        if self._guarantee is Guarantee.NONE:
            # Whether they arrive is nobody's business, but what never leaves cannot.
            self._open.flush(self._timeout)
            return None
        client = self._open
        done = client.flush(self._timeout + _EXTRA_FLUSH_SECONDS)
        problem = client.reports.problem
        if problem is not None:
            worst = client.reports.worst
            hint = _BATCH_HINT if worst is not None and worst.code == _TOO_LARGE else ""
            raise RetriableError(f"Kafka did not take what was sent: {problem}{hint}")
        if not done:
            last = client.reports.last_error
            topics = ", ".join(map(repr, self._written))
            raise RetriableError(
                f"Kafka did not confirm all rows of topic {topics} within {self._timeout:g} s"
                + (f"; the last that was heard: {last}" if last else "")
            )
        if self._guarantee is Guarantee.AT_LEAST_ONCE:
            return None
        identity = client.await_identity(_IDENTITY_SECONDS)
        if identity is None or client.reports.problem is not None:
            raise RetriableError(
                "librdkafka does not tell the producer id and epoch of the transaction "
                f"({client.reports.problem or 'no word of them'})"
            )
        return identity

    def give_up(self, timeout: float) -> ProducerIdentity | None:
        """Close, and give the identity of the transaction that should be aborted, if known.

        What is under way is waited for, as long as that: a row that arrives after the abort
        would hold readers back.
        """
        if self._client is None:
            return None
        try:
            self._client.flush(timeout)
            return self._client.reports.identity
        finally:
            self.close()

    def detach(self) -> Client | None:
        """Close, but for the client, which is given away; None if it was closed before."""
        client, self._client = self._client, None
        return client

    def close(self) -> None:
        """Free everything here; at the broker an open transaction stays open."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # Inside.

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise ValueError("the producer is closed")
        return self._client

    def _count(self, topic: str) -> int | None:
        if topic not in self._counts:
            try:
                self._counts[topic] = self._open.partition_count(topic, TOPIC_SECONDS)
            except ClientError as error:
                raise RetriableError(
                    f"the partitions of topic {topic!r} cannot be had: {error}"
                ) from error
        return self._counts[topic]

    def _explained(self, refusal: Refusal) -> Refusal:
        if refusal.code != _TOO_LARGE:
            return refusal
        # librdkafka says that the broker refused it, and the broker has not seen it.
        reason = f"it is larger than kafka.message.max.bytes, {self._message_bytes}"
        return Refusal(refusal.row, refusal.code, reason)

    def _refuse(
        self,
        records: Records,
        refusals: Sequence[Refusal],
        partitions: npt.NDArray[np.int32] | None,
    ) -> None:
        first = refusals[0]
        values = Bytes.of(records.values)
        keys = None if records.keys is None else Bytes.of(records.keys)
        key = None if keys is None else keys.at(first.row)
        size = int(values.lengths[first.row]) + len(key or b"")
        partition = None if partitions is None else int(partitions[first.row])
        text = f"{describe(records.topic, partition, key, size)}: {first.reason} ({first.code})"
        if self._dead_letter_topic is None or self._dead_letter_topic == records.topic:
            more = f" (and {len(refusals) - 1} more rows)" if len(refusals) > 1 else ""
            raise AssentError(
                f"a row cannot be written to Kafka: {text}{more}; mend the row, raise the limit, "
                "or set option deadLetterTopic to have such rows put aside"
            )
        if self.dead_letters == 0:
            logger.warning("a row goes to topic %r: %s", self._dead_letter_topic, text)
        self.dead_letters += len(refusals)
        self.write(self._dead_letter(records, refusals, partitions, self._dead_letter_topic))
        self.rows -= len(refusals)  # counted when they came the first time

    def _dead_letter(
        self,
        records: Records,
        refusals: Sequence[Refusal],
        partitions: npt.NDArray[np.int32] | None,
        topic: str,
    ) -> Records:
        values = Bytes.of(records.values)
        keys = None if records.keys is None else Bytes.of(records.keys)
        room = self._message_bytes - _OVERHEAD
        kept_values: list[bytes | None] = []
        kept_keys: list[bytes | None] = []
        headers: list[list[dict[str, object]]] = []
        for refusal in refusals:
            row = refusal.row
            key = None if keys is None else keys.at(row)
            value = values.at(row)
            size = len(value or b"") + len(key or b"")
            why = {
                "assent.error": refusal.code,
                "assent.reason": refusal.reason,
                "assent.topic": records.topic,
                "assent.partition": "" if partitions is None else str(int(partitions[row])),
                "assent.bytes": str(size),
            }
            if size > room:
                # What is too large for one topic is too large for another: its beginning is kept.
                why["assent.truncated"] = "true"
                key = None if key is None else key[: room // 2]
                value = None if value is None else value[: room - len(key or b"")]
            kept_values.append(value)
            kept_keys.append(key)
            headers.append([{"key": name, "value": text.encode()} for name, text in why.items()])
        return Records(
            topic,
            pa.array(kept_values, pa.large_binary()),
            pa.array(kept_keys, pa.large_binary()),
            headers=pa.array(headers, HEADERS),
        )
