"""Watches from outside how a topic grows, as a reader of committed records sees it.

So all engines are measured by the same clock and the same rule, whatever they report of themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 30.0
_READ_AT_ONCE = 10_000
_READ_SECONDS = 0.2


@dataclass
class Watcher:
    """The committed end of a topic over time."""

    servers: str
    topic: str
    partitions: int
    curve: list[tuple[float, int]] = field(default_factory=list)

    def wait(self, rows: int, seconds: float, check: Callable[[], None]) -> None:
        """Until so many records are there; `check` raises if whoever writes them has failed."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.curve.append((time.monotonic(), self._end(admin)))
            except KafkaException:
                pass  # a topic has no leader for a moment when it is new: asked again
            found = self.curve[-1][1] if self.curve else 0
            if found >= rows:
                return
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found} of {rows} rows after {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def rows_per_second(self, first: int, last: int) -> float:
        """From the first commit that reaches so many records to the first that reaches `last`."""
        start = next(point for point in self.curve if point[1] >= first)
        end = next(point for point in self.curve if point[1] >= last)
        if start == end:  # all at once: nothing but the whole can be told
            start = next(point for point in reversed(self.curve) if point[1] < first)
        return (end[1] - start[1]) / (end[0] - start[0])

    def count(self) -> int:
        """The records, read one by one. Offsets also count the markers of transactions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        found, ended = 0, 0
        deadline = time.monotonic() + _ANSWER_SECONDS
        try:
            consumer.assign([TopicPartition(self.topic, n, 0) for n in range(self.partitions)])
            while ended < self.partitions:
                # It waits for as many as are asked for, up to the time given.
                messages = consumer.consume(_READ_AT_ONCE, _READ_SECONDS)
                if messages:
                    deadline = time.monotonic() + _ANSWER_SECONDS
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"reading {self.topic} stopped after {found} rows")
                ends = sum(message.error() is not None for message in messages)
                ended += ends
                found += len(messages) - ends
        finally:
            consumer.close()
        return found

    def _end(self, admin: AdminClient) -> int:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(self.topic, number): latest for number in range(self.partitions)}
        answers = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(int(answer.result(_ANSWER_SECONDS).offset) for answer in answers.values())
