"""The markers by which readers know how a transaction ended: looked for, and written if missing.

A transaction has ended for good when its coordinator has noted so. The coordinator then has a
marker written into every partition of the transaction. Kafka 4.3 passes over a partition that has
no leader at that instant, as after a crash of all its replicas: it takes it for a deleted one and
calls the transaction complete. Without its marker the transaction stays open in the partition.
Readers with `read_committed` wait before it for ever, and whatever the same producer id writes
there next is taken for a part of it: it ends as that ends.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kafka.errors
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from assent.protocol.errors import ConfigurationError, InDoubtError
from assent.protocol.verdict import Verdict
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_connection import Address, Connection
from assent.sinks.kafka_coordinators import Patience, code_name
from assent.sinks.kafka_partitions import Partitions
from assent.sinks.kafka_verdict import BUMPING_TRANSACTIONS, Described, State, verdict

logger = logging.getLogger("assent.kafka")

_TOPIC_FORBIDDEN: int = kafka.errors.TopicAuthorizationFailedError.errno
_CLUSTER_FORBIDDEN: int = kafka.errors.ClusterAuthorizationFailedError.errno
_GONE_SECONDS = 5.0
_ENDING = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE})


@dataclass(frozen=True)
class Ended:
    """A transaction that its coordinator has ended."""

    transactional_id: str
    producer: ProducerIdentity
    committed: bool
    partitions: Partitions


@dataclass(frozen=True)
class _Open:
    """A partition that does not know yet that the transaction has ended."""

    ended: Ended
    topic: str
    partition: int
    leader: Address
    start_offset: int
    coordinator_epoch: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}, offset {self.start_offset}"


class Markers:
    """Makes sure that ended transactions have ended for readers too.

    `describe` gives an id as its coordinator has it, and the cluster's `transaction.version`.
    """

    def __init__(
        self,
        brokers: Brokers,
        describe: Callable[[str, Patience], tuple[Described | None, int]],
    ) -> None:
        self._brokers = brokers
        self._describe = describe
        self._forbidden: set[str] = set()

    def confirm(self, ended: Sequence[Ended], patience: Patience) -> None:
        """Return when no partition has one of them open; write the marker where none will come.

        RetriableError: it could not be found out in time. ConfigurationError: a marker is missing,
        and this user may not write it. Topics that are gone, or that this user may not read, are
        left out.
        """
        # A broker that has just started may know a topic a moment later.
        believed = time.monotonic() + _GONE_SECONDS

        def attempt() -> str | None:
            found = self._open(ended, patience, believed)
            if isinstance(found, str):
                return found
            if not found:
                return None
            # The coordinator is asked in between: only what is open after it has finished is
            # without a marker, and would stay so.
            seen = {each.ended.producer: each.ended for each in found}  # it may be in many places
            left = [each for each in seen.values() if self._is_finished(each, patience)]
            again = self._open(left, patience, believed)
            if isinstance(again, str):
                return again
            for each in again:
                self._write(each, patience)
            return f"{found[0]} has no marker yet"

        patience.until_done(attempt, "the end of transactions could not be made sure of")

    def _open(
        self, ended: Sequence[Ended], patience: Patience, believed: float
    ) -> list[_Open] | str:
        """Where they are open; or why that cannot be told now.

        From the instant `believed` on, a partition that the brokers do not know is gone.
        """
        wanted: dict[str, dict[int, list[Ended]]] = defaultdict(lambda: defaultdict(list))
        for each in ended:
            for topic, numbers in each.partitions.items():
                for number in numbers if topic not in self._forbidden else ():
                    wanted[topic][number].append(each)
        if not wanted:
            return []
        by_leader: dict[Address, dict[str, list[int]]] = defaultdict(dict)
        leaders = self._brokers.leaders(wanted, patience.deadline)
        for topic, places in wanted.items():
            known = leaders.get(topic, {})
            for number in places:
                leader = known.get(number)
                if leader is not None:
                    by_leader[leader].setdefault(topic, []).append(number)
                elif number in known or time.monotonic() < believed:
                    return f"topic {topic!r}, partition {number} has no leader"
        found = []
        for leader, led in by_leader.items():
            answer = self._brokers.ask(leader, _describe_request(led), patience.deadline)
            for topic in answer.topics:
                for place in topic.partitions:
                    if place.error_code == _TOPIC_FORBIDDEN:
                        self._leave_out(topic.name)
                        continue
                    if place.error_code:
                        said = code_name(place.error_code)
                        return f"topic {topic.name!r}, partition {place.partition_index}: {said}"
                    candidates = wanted[topic.name][place.partition_index]
                    found.extend(_open_in(place, topic.name, leader, candidates))
        return found

    def _leave_out(self, topic: str) -> None:
        if topic not in self._forbidden:
            self._forbidden.add(topic)
            logger.warning(
                "this user lacks the operation Read on topic %r: whether Kafka has shown readers "
                "what is committed there is not made sure of",
                topic,
            )

    def _is_finished(self, ended: Ended, patience: Patience) -> bool:
        """Whether the coordinator has done with it what it does."""
        described, version = self._describe(ended.transactional_id, patience)
        end = verdict(ended.producer, described, version)
        expected = Verdict.COMMITTED if ended.committed else Verdict.ABORTED
        if end not in (expected, Verdict.UNKNOWN):
            raise InDoubtError(
                f"transaction {ended.transactional_id!r} counts as {expected.value} here, but its "
                f"coordinator says {end.value}: somebody else has decided on it"
            )
        # An id that has moved on is finished: it waits for the end of what it did before.
        return described is None or described.state not in _ENDING

    def _write(self, found: _Open, patience: Patience) -> None:
        """Write the marker that the coordinator left out."""
        ended = found.ended

        def make(connection: Connection) -> Any:
            version = connection.features.get("transaction.version", 0)
            # As the coordinator would: what the producer still sends at the old epoch is refused.
            raised = 1 if version >= BUMPING_TRANSACTIONS else 0
            kind = WriteTxnMarkersRequest.WritableTxnMarker
            place = kind.WritableTxnMarkerTopic(
                name=found.topic, partition_indexes=[found.partition]
            )
            marker = kind(
                producer_id=ended.producer.producer_id,
                producer_epoch=ended.producer.epoch + raised,
                transaction_result=ended.committed,
                topics=[place],
                coordinator_epoch=max(found.coordinator_epoch, 0),
                transaction_version=version,
            )
            return WriteTxnMarkersRequest(
                version=connection.version(WriteTxnMarkersRequest), markers=[marker]
            )

        end = "committed" if ended.committed else "aborted"
        logger.warning(
            "Kafka has %s transaction %s, and left out the marker that tells readers so (%s): it "
            "is written now",
            end,
            ended.transactional_id,
            found,
        )
        answer = self._brokers.ask(found.leader, make, patience.deadline)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code == _CLUSTER_FORBIDDEN:
            raise ConfigurationError(
                f"Kafka has {end} transaction {ended.transactional_id!r}, but left out the marker "
                f"that tells readers so: with read_committed they stand still at {found}. Allow "
                "this user the operation Alter on the cluster, and start the query again: it "
                "writes the marker. Do not abort the transaction by hand"
                + (": its rows would be lost" if ended.committed else "")
            )
        if code:
            logger.warning("the marker was refused: %s; looking again", code_name(code))


def _open_in(place: Any, topic: str, leader: Address, candidates: Sequence[Ended]) -> list[_Open]:
    by_producer = {each.producer: each for each in candidates}
    found = []
    for state in place.active_producers:
        # A higher epoch belongs to a later transaction.
        ended = by_producer.get(ProducerIdentity(state.producer_id, state.producer_epoch))
        if ended is None or state.current_txn_start_offset < 0:
            continue
        found.append(
            _Open(
                ended,
                topic,
                place.partition_index,
                leader,
                state.current_txn_start_offset,
                state.coordinator_epoch,
            )
        )
    return found


def _describe_request(places: Mapping[str, list[int]]) -> Callable[[Connection], Any]:
    topics = [
        DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
        for topic, numbers in places.items()
    ]

    def make(connection: Connection) -> Any:
        version = connection.version(DescribeProducersRequest)
        return DescribeProducersRequest(version=version, topics=topics)

    return make
