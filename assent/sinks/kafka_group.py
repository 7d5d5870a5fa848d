"""The offsets of a consumer group, as lag tools see them, kept by somebody who is no member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_connection import Connection
from assent.sinks.kafka_coordinators import Coordinators, Patience, code_name
from assent.sinks.kafka_verdict import Answer

# Of all that brokers from 3.0 on know, the last in which topics have names and one group is meant.
_COMMIT_VERSION = 8
_FETCH_VERSION = 7
_NOBODY = -1
_MEMBERS = {22: "ILLEGAL_GENERATION", 25: "UNKNOWN_MEMBER_ID", 27: "REBALANCE_IN_PROGRESS"}

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True)
class Position:
    """The offset of the next record to be read, and a note of who says so."""

    offset: int
    note: str = ""


class ConsumerGroup:
    """Reads and sets the committed offsets of a group that has no members of its own."""

    def __init__(self, brokers: Brokers, group: str, timeout: float = 30.0) -> None:
        self.group = group
        self._timeout = timeout
        self._coordinators = Coordinators(brokers, CoordinatorType.GROUP)

    def positions(self) -> dict[Place, Position]:
        """All committed offsets of the group. RetriableError if it cannot be asked in time."""

        def make(connection: Connection) -> Any:
            return OffsetFetchRequest(
                version=connection.version(OffsetFetchRequest, _FETCH_VERSION),
                group_id=self.group,
                topics=None,
                require_stable=False,
            )

        answer = self._ask(make, lambda answer: [answer.error_code], "read")
        return {
            (topic.name, part.partition_index): Position(part.committed_offset, part.metadata or "")
            for topic in answer.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }

    def move(self, positions: Mapping[Place, Position]) -> None:
        """Set offsets. ConfigurationError if the group has members: the offsets are theirs."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), position in sorted(positions.items()):
            topics.setdefault(topic, []).append(
                OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=_NOBODY,
                    committed_metadata=position.note,
                )
            )

        def make(connection: Connection) -> Any:
            return OffsetCommitRequest(
                version=connection.version(OffsetCommitRequest, _COMMIT_VERSION),
                group_id=self.group,
                generation_id_or_member_epoch=_NOBODY,
                member_id="",
                group_instance_id=None,
                topics=[
                    OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=parts)
                    for name, parts in topics.items()
                ],
            )

        self._ask(make, _codes, "set")

    def _ask(self, make: Any, codes: Any, act: str) -> Any:
        patience = Patience(self._timeout)
        result: list[Any] = []

        def attempt() -> str | None:
            answer = self._coordinators.ask(self.group, make, patience)
            for code in codes(answer):
                if code in _MEMBERS:
                    raise ConfigurationError(
                        f"consumer group {self.group!r} (option commitOffsets) has members of its "
                        f"own, who keep its offsets ({_MEMBERS[code]}); choose a group that "
                        "nobody consumes with"
                    )
                if self._coordinators.meaning(code, self.group) is not Answer.DONE:
                    return code_name(code)
            result.append(answer)
            return None

        failed = f"the offsets of consumer group {self.group!r} could not be {act}"
        patience.until_done(attempt, failed)
        return result[0]


def _codes(answer: Any) -> Iterator[int]:
    return (part.error_code for topic in answer.topics for part in topic.partitions)
