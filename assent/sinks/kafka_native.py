"""The fast way to Kafka: from Arrow's buffers into librdkafka, no Python object per row."""

from __future__ import annotations

import time
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p, create_string_buffer, string_at
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from assent.protocol.errors import ConfigurationError, RetriableError
from assent.sinks import kafka_library as c
from assent.sinks.kafka_arguments import RowArguments
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

_EVENTS = c.EVENT_DR | c.EVENT_LOG | c.EVENT_ERROR | c.EVENT_STATS
_NO_SUCH_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


class NativeClient:
    """A producer made and driven through librdkafka's own C interface.

    It takes reports as events from a queue, never as calls from C into Python: nothing runs
    unless it is asked for, and `close` cannot meet a callback.
    """

    def __init__(self, settings: Settings, token: TokenFunction | None = None) -> None:
        self.reports = Reports()
        self._handle: int | None = None
        self._library = c.library()
        self._token = token
        self._topics: dict[str, int] = {}
        self._messages = np.zeros(0, c.MESSAGE)
        self._begun = False
        self._handle = self._new(settings)
        self._queue = self._library.queue_get_main(self._handle)
        self._library.set_log_queue(self._handle, None)
        if token is not None:
            self._set_token(settings.get("sasl.oauthbearer.config", ""))

    def _new(self, settings: Settings) -> int:
        error = create_string_buffer(512)
        configuration = configure(self._library, settings)
        # Without a function of the user, librdkafka gets its tokens by itself.
        events = _EVENTS | (c.EVENT_TOKEN_REFRESH if self._token is not None else 0)
        self._library.conf_set_events(configuration, events)
        handle = self._library.new(c.PRODUCER, configuration, error, len(error))
        if not handle:
            self._library.conf_destroy(configuration)
            raise ConfigurationError(f"Kafka's client refuses its settings: {_text(error.value)}")
        return int(handle)

    def begin(self, timeout: float) -> None:
        if self._begun:
            return
        deadline = time.monotonic() + timeout
        self._await_broker(min(1.0, timeout))
        while True:
            wait = int(min(1000.0, max(1.0, 1000 * (deadline - time.monotonic()))))
            try:
                self._check(self._library.init_transactions(self._handle, wait))
                break
            except ClientError as error:
                # In slices, because a token may be asked for meanwhile. The next call resumes.
                self._poll(0)
                if not error.retriable or self.reports.denied or time.monotonic() >= deadline:
                    raise
        self._check(self._library.begin_transaction(self._handle))
        self._begun = True
        self._poll(0)

    def is_usable(self) -> bool:
        self._poll(0)
        return self.reports.is_good

    def _await_broker(self, timeout: float) -> None:
        """Return when a broker is connected, or time has run out; then nothing is lost but time.

        Asked for its transactional id before that, librdkafka looks for a broker again only half
        a second later. The first answer comes over the bootstrap connection, which it then gives
        up; the second one over a connection that stays.
        """
        for _ in range(2):
            found = POINTER(c.Metadata)()
            if self._library.metadata(self._handle, 0, None, byref(found), int(1000 * timeout)):
                return
            self._library.metadata_destroy(found)

    def partition_count(self, topic: str, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        while True:
            found = POINTER(c.Metadata)()
            code = self._library.metadata(
                self._handle, 0, self._topic(topic), byref(found), int(1000 * timeout)
            )
            count = 0
            if not code:
                if found.contents.topic_count == 1:
                    code = int(found.contents.topics[0].err)
                    count = int(found.contents.topics[0].partition_count)
                self._library.metadata_destroy(found)
            self._poll(0)
            if not code and count:
                return count
            name = self._name(code)
            if time.monotonic() >= deadline:
                if name in _NO_SUCH_TOPIC:
                    return None
                raise ClientError(name, _text(self._library.err2str(code)))
            if name not in (*_NO_SUCH_TOPIC, "LEADER_NOT_AVAILABLE"):
                raise ClientError(name, _text(self._library.err2str(code)))
            # A topic that was just created takes a moment to be known everywhere.
            self._poll(TOPIC_WAIT)

    def send(self, records: Records, partitions: npt.NDArray[np.int32]) -> list[Refusal]:
        self._poll(0)
        if records.headers is None and records.timestamps is None:
            return self._send_batch(records, partitions)
        return self._send_rows(records, partitions)

    def flush(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._library.flush(self._handle, int(1000 * FLUSH_WAIT)):
            self._poll(0)
            if self.reports.problem is not None or time.monotonic() >= deadline:
                return self.reports.problem is not None
        self._poll(0)
        return True

    def await_identity(self, timeout: float) -> ProducerIdentity | None:
        deadline = time.monotonic() + timeout
        while self.reports.identity is None and time.monotonic() < deadline:
            self._poll(QUEUE_WAIT)
        return self.reports.identity

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._handle is None:
            return
        purge = c.PURGE_F_QUEUE | c.PURGE_F_INFLIGHT | c.PURGE_F_NON_BLOCKING
        self._library.purge(self._handle, purge)
        for topic in self._topics.values():
            self._library.topic_destroy(topic)
        self._library.queue_destroy(self._queue)
        # Ends the threads and frees everything. It says nothing to the broker, so an open
        # transaction stays open there.
        self._library.destroy(self._handle)
        self._handle = None
        self._topics.clear()

    # Sending.

    def _send_batch(self, records: Records, partitions: npt.NDArray[np.int32]) -> list[Refusal]:
        topic = self._topic(records.topic)
        count = len(records)
        messages = self._message_array(count)
        values = Bytes.of(records.values)
        keys = None if records.keys is None else Bytes.of(records.keys)
        # Partition by partition, which librdkafka takes in faster; within one the order stays.
        order = _by_partition(partitions)
        messages["partition"] = _in_order(partitions, order)
        messages["payload"] = _in_order(values.addresses, order)
        messages["len"] = _in_order(values.lengths, order)
        messages["key"] = 0 if keys is None else _in_order(keys.addresses, order)
        messages["key_len"] = 0 if keys is None else _in_order(keys.lengths, order)
        flags = c.MSG_F_COPY | c.MSG_F_PARTITION
        refused: list[Refusal] = []
        start = 0
        while start < count:
            left = count - start
            address = messages[start:].ctypes.data
            taken = self._library.produce_batch(topic, -1, flags, address, left)
            if taken == left:
                break
            failed = start + np.flatnonzero(messages["err"][start:])
            # Once the queue is full, all that follow are refused for it: order is kept.
            full = failed[messages["err"][failed] == c.ERR_QUEUE_FULL]
            for row in failed[messages["err"][failed] != c.ERR_QUEUE_FULL].tolist():
                place = row if order is None else int(order[row])
                refused.append(self._refusal(place, int(messages["err"][row])))
            if not len(full):
                break
            start = int(full[0])
            self._await_room()
        del values, keys  # until here the array of messages pointed into them
        return refused

    def _send_rows(self, records: Records, partitions: npt.NDArray[np.int32]) -> list[Refusal]:
        arguments = RowArguments(self._topic(records.topic), records, partitions)
        order = _by_partition(partitions)
        addresses: list[int] = _in_order(arguments.addresses, order).tolist()
        counts: list[int] = _in_order(arguments.counts, order).tolist()
        refused: list[Refusal] = []
        start = 0
        while start < len(records):
            errors = map(
                self._library.produceva, repeat(self._handle), addresses[start:], counts[start:]
            )
            row, error = next(
                ((at, found) for at, found in enumerate(errors, start) if found), (0, 0)
            )
            if not error:
                break
            code = int(self._library.error_code(error))
            self._library.error_destroy(error)
            if code == c.ERR_QUEUE_FULL:
                start = row
                self._await_room()
            else:
                refused.append(self._refusal(row if order is None else int(order[row]), code))
                start = row + 1
        return refused

    def _refusal(self, row: int, code: int) -> Refusal:
        name = self._name(code)
        if name in ("_STATE", "_FATAL", "_FENCED"):
            self._poll(0)
            raise RetriableError(
                f"the transaction cannot go on: {self.reports.problem or self._text(code)}"
            )
        return Refusal(row, name, self._text(code))

    def _await_room(self) -> None:
        self._poll(QUEUE_WAIT)
        if self.reports.problem is not None:
            raise RetriableError(f"Kafka did not take what was sent: {self.reports.problem}")

    def _message_array(self, count: int) -> npt.NDArray[Any]:
        if len(self._messages) < count:
            self._messages = np.zeros(count, c.MESSAGE)
        return self._messages[:count]

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            topic = self._library.topic_new(self._handle, name.encode(), None)
            if not topic:
                raise ClientError("_INVALID_ARG", f"{name!r} is not the name of a topic")
            self._topics[name] = int(topic)
        return self._topics[name]

    # Listening.

    def _poll(self, seconds: float) -> None:
        """Take in all events there are, waiting for the first one."""
        wait = int(1000 * seconds)
        while event := self._library.queue_poll(self._queue, wait):
            wait = 0
            try:
                self._take_in(event)
            finally:
                self._library.event_destroy(event)

    def _take_in(self, event: int) -> None:
        kind = self._library.event_type(event)
        if kind == c.EVENT_DR:
            while message := self._library.event_message_next(event):
                if message.contents.err:
                    self.reports.on_failure(self._failure(message.contents))
        elif kind == c.EVENT_LOG:
            facility, text, level = c_char_p(), c_char_p(), c_int()
            self._library.event_log(event, byref(facility), byref(text), byref(level))
            self.reports.on_log(level.value, _text(facility.value), _text(text.value))
        elif kind == c.EVENT_STATS:
            self.reports.on_statistics(_text(self._library.event_stats(event)))
        elif kind == c.EVENT_ERROR:
            code = self._library.event_error(event)
            reason = _text(self._library.event_error_string(event))
            if code == c.ERR_FATAL:
                buffer = create_string_buffer(512)
                code = self._library.fatal_error(self._handle, buffer, len(buffer))
                self.reports.on_error(self._name(code), _text(buffer.value), fatal=True)
            else:
                self.reports.on_error(self._name(code), reason, fatal=False)
        elif kind == c.EVENT_TOKEN_REFRESH and self._token is not None:
            self._set_token(_text(self._library.event_config_string(event)))

    def _failure(self, message: c.Message) -> Failure:
        key = None if not message.key else string_at(message.key, message.key_len)
        topic = _text(self._library.topic_name(message.rkt))
        size = message.len + message.key_len
        name = self._name(message.err)
        return Failure(topic, message.partition, key, size, name, self._text(message.err))

    def _set_token(self, configuration: str) -> None:
        assert self._token is not None
        try:
            token, ends_at, *more = self._token(configuration)
        except Exception as error:
            reason = f"the token function failed: {type(error).__name__}"
            self._library.oauthbearer_set_token_failure(self._handle, reason.encode())
            return
        principal = str(more[0]) if more else ""
        pairs = dict(more[1]) if len(more) > 1 else {}  # type: ignore[call-overload]
        flat = [str(text).encode() for pair in pairs.items() for text in pair]
        extensions = (c_char_p * len(flat))(*flat)
        buffer = create_string_buffer(512)
        failed = self._library.oauthbearer_set_token(
            self._handle,
            str(token).encode(),
            int(1000 * float(ends_at)),  # type: ignore[arg-type]
            principal.encode(),
            extensions,
            len(flat),
            buffer,
            len(buffer),
        )
        if failed:
            self._library.oauthbearer_set_token_failure(self._handle, buffer.value)

    # Errors.

    def _check(self, error: int | None) -> None:
        if not error:
            return
        name = self._name(self._library.error_code(error))
        reason = _text(self._library.error_string(error))
        retriable = bool(self._library.error_is_retriable(error))
        self._library.error_destroy(error)
        raise ClientError(name, reason, retriable)

    def _name(self, code: int) -> str:
        return _text(self._library.err2name(code))

    def _text(self, code: int) -> str:
        return _text(self._library.err2str(code))


def _by_partition(partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
    if len(partitions) < 2 or bool((partitions[1:] >= partitions[:-1]).all()):
        return None
    # Short integers are sorted by their digits, in linear time.
    short = partitions.astype(np.uint16) if int(partitions.max()) < 1 << 16 else partitions
    return np.argsort(short, kind="stable")


def _in_order(array: npt.NDArray[Any], order: npt.NDArray[np.intp] | None) -> npt.NDArray[Any]:
    return array if order is None else array[order]


def configure(library: c.Library, settings: Settings) -> c_void_p:
    """A configuration of librdkafka; ConfigurationError names what it does not take."""
    configuration = library.conf_new()
    error = create_string_buffer(512)
    for name, value in settings.items():
        if library.conf_set(configuration, name.encode(), value.encode(), error, len(error)):
            library.conf_destroy(configuration)
            reason = "its value is not allowed" if is_secret(name) else _text(error.value)
            raise ConfigurationError(f"option kafka.{name}: {reason}")
    return c_void_p(configuration)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
