"""The brokers of a cluster: where they are, and what they say of themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from assent.protocol.errors import ConfigurationError, RetriableError
from assent.sinks.kafka_client import TokenFunction
from assent.sinks.kafka_connection import Address, Connection, ConnectionLost, ConnectionPool
from assent.sinks.kafka_security import KafkaSecurity

_METADATA_VERSION = 9  # flexible, told by all that are new enough, and topics still have names
_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_WRITE = 4
_UNKNOWN_TOPIC = 3
_TOPIC_FORBIDDEN = 29
_REQUEST_SECONDS = 10.0


@dataclass(frozen=True)
class Topic:
    """A topic, as far as the broker tells."""

    name: str
    partitions: int
    may_write: bool | None = None
    """None if the broker does not say."""


@dataclass(frozen=True)
class Cluster:
    """What there is to know before a query starts."""

    cluster_id: str
    brokers: Mapping[int, Address]
    transaction_version: int
    """2 if ending a transaction raises the epoch, otherwise less."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The brokers' own settings that were asked for; without those that this user may not see."""


class Brokers:
    """Reaches the brokers that `bootstrap.servers` leads to. Safe to use from many threads."""

    def __init__(self, settings: Mapping[str, str], token: TokenFunction | None = None) -> None:
        servers = settings.get("bootstrap.servers", settings.get("metadata.broker.list", ""))
        self._bootstrap = Address.parse_list(servers)
        self._request_seconds = _milliseconds(settings, "socket.timeout.ms", _REQUEST_SECONDS)
        self._pool = ConnectionPool(
            KafkaSecurity.read(settings, token),
            settings.get("client.id", "assent"),
            _milliseconds(settings, "socket.connection.setup.timeout.ms", _REQUEST_SECONDS),
        )
        self._known: dict[int, Address] = {}
        self._failed: dict[Address, float] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return ",".join(map(str, self._bootstrap))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def ask(self, address: Address, make: Callable[[Connection], Any], deadline: float) -> Any:
        """Ask one broker. ConnectionLost if it cannot be reached or does not answer in time."""
        seconds = min(self._request_seconds, deadline - time.monotonic())
        if seconds <= 0:
            raise ConnectionLost(f"no time is left to ask {address}")
        try:
            answer = self._pool.ask(address, make, seconds)
        except ConnectionLost:
            with self._lock:
                self._failed[address] = time.monotonic()
            raise
        with self._lock:
            self._failed.pop(address, None)
        return answer

    def ask_any(self, make: Callable[[Connection], Any], deadline: float) -> Any:
        """Ask one broker after the other until one answers; those that failed lately come last."""
        with self._lock:
            addresses = [*dict.fromkeys([*self._known.values(), *self._bootstrap])]
            addresses.sort(key=lambda address: self._failed.get(address, 0.0))
        lost: list[str] = []
        for address in addresses:
            try:
                return self.ask(address, make, deadline)
            except ConnectionLost as error:
                lost.append(str(error))
        raise ConnectionLost("no broker answers: " + "; ".join(lost))

    def all(self, deadline: float) -> dict[int, Address]:
        """The brokers that take part now, by their node id."""
        return self._learn(deadline)[1]

    def cluster(self, settings: Collection[str] = (), timeout: float = 30.0) -> Cluster:
        """Ask for the cluster, and for settings of a broker such as transaction.max.timeout.ms.

        RetriableError if no broker can be reached, ConfigurationError if they refuse.
        """
        deadline = time.monotonic() + timeout
        try:
            cluster_id, known = self._learn(deadline)
            version = 0

            def make(connection: Connection) -> Any:
                nonlocal version
                version = connection.features.get("transaction.version", 0)
                return _configuration_request(connection, _BROKER_RESOURCE, str(node), settings)

            node, address = sorted(known.items())[0]
            described = self.ask(address, make, deadline)
        except ConnectionLost as error:
            raise RetriableError(
                f"the Kafka cluster at {self!r} (kafka.bootstrap.servers) cannot be reached: "
                f"{error}"
            ) from None
        return Cluster(cluster_id, known, version, _found(described, settings))

    def topic(self, name: str, timeout: float = 30.0) -> Topic | None:
        """The topic, or None if there is none. ConfigurationError if this user may not see it."""
        try:
            answer = self._metadata([name], time.monotonic() + timeout)
        except ConnectionLost as error:
            raise RetriableError(f"topic {name!r} could not be asked for: {error}") from None
        (topic,) = answer.topics
        if topic.error_code == _UNKNOWN_TOPIC:
            return None
        if topic.error_code == _TOPIC_FORBIDDEN:
            raise ConfigurationError(
                f"the Kafka broker does not let this user see topic {name!r}: it needs the "
                "operations Describe and Write on it"
            )
        allowed = topic.authorized_operations
        may_write = None if allowed is None else _WRITE in allowed
        return Topic(name, len(topic.partitions), may_write)

    def leaders(
        self, topics: Collection[str], deadline: float
    ) -> dict[str, dict[int, Address | None]]:
        """The brokers that lead the partitions of topics, None for one that nobody leads now.

        Without the topics that this broker does not know; ConnectionLost if none answers.
        """
        answer = self._metadata(topics, deadline)
        known = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        found = {}
        for topic in answer.topics:
            if not topic.error_code:
                leaders = {one.partition_index: one.leader_id for one in topic.partitions}
                found[topic.name] = {number: known.get(node) for number, node in leaders.items()}
        return found

    def topic_settings(
        self, topic: str, settings: Collection[str], timeout: float = 30.0
    ) -> dict[str, str]:
        """Settings of a topic such as max.message.bytes; without those that are not told."""

        def make(connection: Connection) -> Any:
            return _configuration_request(connection, _TOPIC_RESOURCE, topic, settings)

        try:
            return _found(self.ask_any(make, time.monotonic() + timeout), settings)
        except ConnectionLost as error:
            raise RetriableError(
                f"the settings of topic {topic!r} could not be asked for: {error}"
            ) from None

    def _learn(self, deadline: float) -> tuple[str, dict[int, Address]]:
        answer = self._metadata([], deadline)
        known = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        with self._lock:
            self._known = known
        return answer.cluster_id, known

    def _metadata(self, topics: Collection[str], deadline: float) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]

        def make(connection: Connection) -> Any:
            return MetadataRequest(
                version=connection.version(MetadataRequest, _METADATA_VERSION),
                topics=wanted,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
            )

        return self.ask_any(make, deadline)


def _configuration_request(
    connection: Connection, kind: int, name: str, settings: Collection[str]
) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=list(settings),
    )
    version = connection.version(DescribeConfigsRequest)
    return DescribeConfigsRequest(version=version, resources=[resource])


def _found(described: Any, settings: Collection[str]) -> dict[str, str]:
    return {
        entry.name: entry.value
        for resource in described.results
        if not resource.error_code
        for entry in resource.configs
        if entry.name in settings and entry.value is not None
    }


def _milliseconds(settings: Mapping[str, str], name: str, default: float) -> float:
    text = settings.get(name)
    if text is None:
        return default
    try:
        return max(int(text), 1) / 1000
    except ValueError:
        raise ConfigurationError(
            f"option kafka.{name} is {text!r}; expected a number of milliseconds"
        ) from None
