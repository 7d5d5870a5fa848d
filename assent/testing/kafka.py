"""Real Kafka brokers for tests, the demo and benchmarks: one way to start them.

    with KafkaCluster() as kafka:
        kafka.create_topic("app-topic", partitions=2)
        producer = confluent_kafka.Producer(kafka.settings())

KRaft, brokers and controllers in the same processes, on the loopback address, with ports and a
data folder of their own. Nothing is left behind, however the process that started them ends.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.protocol.metadata import MetadataRequest

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_connection import Address, Connection, ConnectionLost, ConnectionPool
from assent.sinks.kafka_security import KafkaSecurity
from assent.testing.jars import Artifact, java, resolve
from assent.testing.kafka_listener import ClientListener
from assent.testing.proxy import Proxy
from assent.testing.server import Server, ServerFailure, free_ports

KAFKA = "4.3.1"
"""The release line of today."""
KAFKA_BEFORE = "3.9.2"
"""The line before, which many still run: no transactions of the second version."""

_START_SECONDS = 90.0
_ANSWER_SECONDS = 5.0
_STARTS = 3
# Quick to start.
_JAVA_OPTIONS = ("-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG_OPTIONS = (
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
)


class Broker:
    """One broker of a cluster. Its data outlive it until the cluster is closed."""

    def __init__(self, cluster: KafkaCluster, node: int, folder: Path, port: int) -> None:
        self.node = node
        self.port = port
        self.folder = folder
        self.log = folder / f"broker-{node}.log"
        self._cluster = cluster
        self._server: Server | None = None

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.running

    @property
    def pid(self) -> int:
        return self._running_server().pid

    def start(self, *, wait: bool = True) -> None:
        """Start the process; returns when the broker answers and takes part in the cluster."""
        if self.running:
            raise ServerFailure(f"broker {self.node} runs already")
        self._server = Server(
            self._cluster.java_command("kafka.Kafka", str(self.folder / "server.properties")),
            self.log,
        )
        if wait:
            self.wait_until_ready()

    def stop(self) -> None:
        """Stop it in an orderly way: it hands over what it leads."""
        self._running_server().stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._running_server().kill()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._running_server().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._running_server().resume()

    def restart(self) -> None:
        """Start it again with its data; stops it before, if it runs."""
        if self.running:
            self.stop()
        self.start()

    def wait_until_ready(self, brokers: int = 1) -> None:
        """Wait until it answers, and knows itself and so many brokers to be in the cluster."""
        server = self._running_server()
        server.wait_until(lambda: self._is_ready(brokers), "it was ready", _START_SECONDS)

    def _is_ready(self, brokers: int) -> bool:
        try:
            known = self._cluster.ask_for_nodes(self.port)
        except ConnectionLost:
            return False
        return self.node in known and len(known) >= brokers

    def _running_server(self) -> Server:
        if self._server is None:
            raise ServerFailure(f"broker {self.node} was not started")
        return self._server


def broker_jars(version: str = KAFKA) -> list[Path]:
    """What a broker of that version runs from."""
    return [
        *resolve(Artifact("org.apache.kafka", "kafka_2.13", version)),
        # The broker's jars come without anything to log with.
        *resolve(Artifact("org.slf4j", "slf4j-simple", "1.7.36")),
    ]


class KafkaCluster:
    """One or more brokers.

    `properties` override those of the brokers, such as `transaction.max.timeout.ms` or
    `message.max.bytes`; `features` the levels of the cluster's features, such as
    `transaction.version`. `listener` adds a listener with TLS or SASL, or both, which `settings`
    then speaks of; brokers and tests reach each other over a plain one besides. `proxied` puts a
    proxy before each broker; whoever comes by `proxied_servers` goes through them, others do not.
    `java_options` replace those with which a broker starts quickly and runs slowly.
    """

    def __init__(
        self,
        version: str = KAFKA,
        brokers: int = 1,
        properties: Mapping[str, str] | None = None,
        listener: ClientListener | None = None,
        features: Mapping[str, int] | None = None,
        heap: str = "512m",
        proxied: bool = False,
        java_options: Sequence[str] = _JAVA_OPTIONS,
    ) -> None:
        if proxied and listener is not None:
            raise ValueError("a cluster has either a listener of its own or proxies")
        self.version = version
        self.proxies: list[Proxy] = []
        self._proxied = proxied
        self.listener = listener
        self._java_options = (f"-Xmx{heap}", *java_options, *_LOG_OPTIONS)
        self._count = brokers
        self._properties = dict(properties or {})
        self._features = dict(features or {})
        self._jars = broker_jars(version)
        self._pool = ConnectionPool(KafkaSecurity("PLAINTEXT"), connect_timeout=_ANSWER_SECONDS)
        self._folder: Path | None = None
        self.brokers: list[Broker] = []
        self._client_ports: list[int] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Format the data folders and start all brokers; returns when each of them answers."""
        for left in reversed(range(_STARTS)):
            try:
                self._start()
                return
            except ServerFailure as error:
                self.close()
                # Between choosing a port and using it, somebody else may have taken it.
                if "Address already in use" not in str(error) or not left:
                    raise
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Kill what runs and remove all data."""
        for broker in self.brokers:
            if broker.running:
                broker.kill()
        for proxy in self.proxies:
            proxy.close()
        self._pool.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.brokers, self.proxies, self._folder = [], [], None

    @property
    def bootstrap_servers(self) -> str:
        """The plain listeners of all brokers, also of those that do not run."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    @property
    def proxied_servers(self) -> str:
        """All brokers, each by way of its proxy."""
        return ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)

    def settings(self) -> dict[str, str]:
        """What a client needs to connect, as librdkafka names it; over TLS or SASL if there."""
        if self.listener is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        servers = ",".join(f"localhost:{port}" for port in self._client_ports)
        return {"bootstrap.servers": servers, **self.listener.client_settings(self.folder)}

    @property
    def folder(self) -> Path:
        """Where data, logs and certificates are while the cluster is there."""
        if self._folder is None:
            raise ServerFailure("the cluster was not started")
        return self._folder

    def broker(self, node: int) -> Broker:
        """The broker of that node id."""
        return next(broker for broker in self.brokers if broker.node == node)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; `config` with underscores for dots. Returns when it can be used."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=min(3, self._count),
            config={key.replace("_", "."): value for key, value in config.items()},
        )
        admin.create_topics([topic])[name].result(_START_SECONDS)
        deadline = time.monotonic() + _START_SECONDS
        for broker in self.brokers:
            while broker.running and self._leaders(broker.port, name) < partitions:
                if time.monotonic() > deadline:
                    raise ServerFailure(f"broker {broker.node} does not learn of topic {name}")
                time.sleep(0.02)

    def ask_for_nodes(self, port: int) -> set[int]:
        """The brokers that take part, as the one on that port sees it."""
        return {broker.node_id for broker in self._metadata(port, []).brokers}

    def java_command(self, main: str, *arguments: str) -> list[str]:
        """How to run a class out of the broker's jars."""
        path = os.pathsep.join(map(str, self._jars))
        return [java(), *self._java_options, "-cp", path, main, *arguments]

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="assent-kafka-"))
        ports = free_ports(3 * self._count)
        controllers, plain, clients = (ports[i::3] for i in range(3))
        self._client_ports = clients
        if self.listener is not None:
            self.listener.prepare(self.folder)
        if self._proxied:
            self.proxies = [Proxy(port) for port in clients]
        for index in range(self._count):
            folder = self.folder / f"broker-{index + 1}"
            folder.mkdir()
            broker = Broker(self, index + 1, folder, plain[index])
            self._write_properties(broker, controllers, clients[index])
            self.brokers.append(broker)
        cluster_id = _cluster_id()
        with ThreadPoolExecutor(self._count) as threads:
            list(threads.map(lambda broker: self._format(broker, cluster_id), self.brokers))
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_until_ready(self._count)

    def _format(self, broker: Broker, cluster_id: str) -> None:
        configuration = str(broker.folder / "server.properties")
        command = ["format", "-t", cluster_id, "-c", configuration]
        for name, level in self._features.items():
            command += ["--feature", f"{name}={level}"]
        if self.listener is not None:
            command += self.listener.format_arguments()
        done = subprocess.run(
            self.java_command("kafka.tools.StorageTool", *command),
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ServerFailure(f"formatting broker {broker.node} failed:\n{done.stderr[-3000:]}")

    def _write_properties(self, broker: Broker, controllers: list[int], client_port: int) -> None:
        replicas = str(min(3, self._count))
        enough = "2" if self._count >= 3 else "1"
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(controllers))
        own = controllers[broker.node - 1]
        listeners = [f"PLAINTEXT://127.0.0.1:{broker.port}"]
        protocols = ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT"]
        if self.listener is not None:
            listeners.append(f"CLIENT://localhost:{client_port}")
            protocols.append(f"CLIENT:{self.listener.protocol}")
        advertised = list(listeners)
        if self._proxied:
            listeners.append(f"CLIENT://127.0.0.1:{client_port}")
            advertised.append(f"CLIENT://127.0.0.1:{self.proxies[broker.node - 1].port}")
            protocols.append("CLIENT:PLAINTEXT")
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(broker.node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{own}"]),
            "advertised.listeners": ",".join(advertised),
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(protocols),
            "log.dirs": str(broker.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": replicas,
            "min.insync.replicas": enough,
            # Few partitions of the internal topics: brokers start and fail over faster.
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": enough,
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": enough,
            "group.initial.rebalance.delay.ms": "0",
            # How soon a killed broker is missed; before that, it is not let in again.
            "broker.session.timeout.ms": "2000" if self._count == 1 else "5000",
            "broker.heartbeat.interval.ms": "500",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
            "num.recovery.threads.per.data.dir": "1",
            # Out of the heap, whatever its size.
            "log.cleaner.dedupe.buffer.size": "4194304",
            **(self.listener.broker_properties(self.folder) if self.listener else {}),
            **self._properties,
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (broker.folder / "server.properties").write_text(text)

    def _leaders(self, port: int, topic: str) -> int:
        try:
            answer = self._metadata(port, [topic])
        except ConnectionLost:
            return 0
        return sum(
            partition.error_code == 0 for found in answer.topics for partition in found.partitions
        )

    def _metadata(self, port: int, topics: list[str]):  # type: ignore[no-untyped-def]
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]

        def make(connection: Connection) -> MetadataRequest:
            return MetadataRequest(
                version=connection.version(MetadataRequest, 9),
                topics=wanted,
                allow_auto_topic_creation=False,
            )

        try:
            return self._pool.ask(Address("127.0.0.1", port), make, _ANSWER_SECONDS)
        except ConfigurationError as error:
            raise ConnectionLost(str(error)) from None


def _cluster_id() -> str:
    # In Kafka's spelling. One that begins with a dash would be taken for an option.
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()).startswith("-"):
        pass
    return text.rstrip("=")
