"""R13: where complete epochs end in their Kafka source, published to a consumer group."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from assent.protocol.errors import ConfigurationError
from assent.protocol.listener import EpochListener
from assent.sinks.kafka_group import ConsumerGroup, Place, Position

_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")


class OffsetLog(Protocol):
    """What has to be known of Spark's checkpoint."""

    def query(self) -> str:
        """The id of the query."""

    def source_offsets(self, epoch: int) -> Sequence[str]:
        """Where the epoch ends in each source, as the source wrote it."""


class KafkaOffsets(EpochListener):
    """Publishes where each complete epoch ends, so that lag tools tell the truth.

    Never offsets of an incomplete epoch. Each is noted with query and epoch: a driver that
    completes an older epoch late does not move the group back.
    """

    def __init__(self, group: ConsumerGroup, log: OffsetLog) -> None:
        self._group = group
        self._log = log

    def check(self, epoch: int) -> None:
        """Raise, before the epoch is written, if its offsets could not be published."""
        if not kafka_positions(self._log.source_offsets(epoch)):
            raise ConfigurationError(
                f"option commitOffsets is {self._group.group!r}, but no source of this query is "
                "Kafka: remove the option"
            )
        self._group.positions()

    def on_epoch_complete(self, epoch: int) -> None:
        query = self._log.query()
        note = f"assent {query} {epoch}"
        known = self._group.positions()
        ends = kafka_positions(self._log.source_offsets(epoch))
        moved = {
            place: Position(offset, note)
            for place, offset in ends.items()
            if not _is_later(known.get(place), query, epoch)
        }
        if moved:
            self._group.move(moved)


def kafka_positions(sources: Sequence[str]) -> dict[Place, int]:
    """The ends of all Kafka sources among these; where two read a partition, the slower counts."""
    found: dict[Place, int] = {}
    for text in sources:
        value = _parsed(text)
        if not _is_kafka(value):
            continue
        for topic, partitions in value.items():
            for number, offset in partitions.items():
                place = (topic, int(number))
                found[place] = min(offset, found.get(place, offset))
    return found


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_kafka(value: dict[str, Any]) -> bool:
    """Whether this is how Spark's Kafka source writes its offsets: topic, partition, offset."""
    return bool(value) and all(
        isinstance(partitions, dict)
        and all(
            _PARTITION.fullmatch(number) and type(end) is int and -(1 << 63) <= end < 1 << 63
            for number, end in partitions.items()
        )
        for partitions in value.values()
    )


def _is_later(position: Position | None, query: str, epoch: int) -> bool:
    if position is None:
        return False
    match position.note.split(" "):
        case ["assent", noted, number] if noted == query and number.isdecimal():
            return int(number) > epoch
    return False
