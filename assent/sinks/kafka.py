"""The Kafka sink: one transaction per task and epoch, committed from the driver by its handle."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, prefix
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.function import load_function
from assent.sinks.kafka_id import PLACES, TransactionalId
from assent.sinks.kafka_partitions import Partitions, format_partitions, parse_partitions
from assent.sinks.kafka_rows import VALUE_FORMATS, RowFormat
from assent.sinks.kafka_settings import TIMEOUT_SETTING, producer_settings, take_timeout
from assent.sinks.mark import mark
from assent.sinks.option import (
    Option,
    Parser,
    boolean,
    choice,
    columns,
    positive_integer,
    text,
    timeout,
)

if TYPE_CHECKING:
    import pyarrow as pa

    # Libraries of the extra: whoever only names the sink does without them.
    from assent.sinks.kafka_client import Client
    from assent.sinks.kafka_control import KafkaControl
    from assent.sinks.kafka_producer import TaskProducer
    from assent.sinks.kafka_reserve import Reserve

_PRODUCER = re.compile(r"[0-9]{1,18}/[0-9]{1,5}")
_PARTITIONS = "partitions"
_BEGIN_SECONDS = 60.0
_AHEAD_SECONDS = 10.0
_DISCARD_SECONDS = 5.0
_ANY_TEXT = Parser("a setting of librdkafka", lambda value: value)


@dataclass(frozen=True)
class KafkaTransaction:
    """What a task has open; `transactional_id` is None without transactions."""

    name: TransactionName
    transactional_id: TransactionalId | None
    producer: TaskProducer
    release: ExitStack
    """Closes the producer and gives its place in the pool back; at the broker it stays open."""


class KafkaSink(Sink[KafkaTransaction]):
    """Rows become records of Kafka topics; readers with `read_committed` see each once.

    Columns are those of Spark's own Kafka sink: `key`, `value`, `topic`, `partition`, `headers`;
    and a `timestamp`.

    Parameters
    ----------
    kafka
        Settings of the client, as librdkafka names them; `bootstrap.servers` is required.
    topic
        The topic of all rows. Without it, the column `topic` says it row by row.
    include_headers
        Whether a column `headers` is written as headers.
    value_format
        `raw` (column `value`), or `json` or `avro` for whole rows.
    key_columns, value_columns
        With `json` and `avro`: what key and value are made of.
    key_schema, value_schema, key_schema_id, value_schema_id
        Avro schemas as JSON, and their ids in a schema registry, which are put before each value.
    serializer
        `module:function` of a function from a RecordBatch to (keys, values).
    partitioner
        `module:function` of a function from (RecordBatch, number of partitions) to partitions.
    token_function
        `module:function` of a function that gives tokens for OAUTHBEARER.
    dead_letter_topic
        Where rows go that cannot be sent. Without it, such a row fails its task.
    transaction_timeout
        Seconds after which the broker gives up a transaction that nobody has committed.
    producer_pool_size
        How many producers one process may have open: one per running task and Kafka sink.
    """

    kind: ClassVar[str] = "kafka"

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("kafka", _ANY_TEXT, {}, "settings of the client", secret=True, prefix=True),
        Option("topic", text, None, "the topic of all rows; without it, the column topic"),
        Option("includeHeaders", boolean, True, "whether a column headers is written"),
        Option("valueFormat", choice(*VALUE_FORMATS), "raw", "what the value is made of"),
        Option("keyColumns", columns, (), "columns that make the key"),
        Option("valueColumns", columns, (), "columns that make the value"),
        Option("keySchema", text, None, "Avro schema of the key, as JSON"),
        Option("valueSchema", text, None, "Avro schema of the value, as JSON"),
        Option("keySchemaId", positive_integer, None, "id of the key's schema in a registry"),
        Option("valueSchemaId", positive_integer, None, "id of the value's schema in a registry"),
        Option("serializer", text, None, "module:function from rows to keys and values"),
        Option("partitioner", text, None, "module:function from rows to partitions"),
        Option("tokenFunction", text, None, "module:function that gives OAUTHBEARER tokens"),
        Option("deadLetterTopic", text, None, "where rows go that cannot be sent"),
        Option("transactionTimeout", timeout, None, "when the broker gives a transaction up"),
        Option("producerPoolSize", positive_integer, 16, "how many producers a process may have"),
    )

    def __init__(
        self,
        kafka: Mapping[str, str],
        topic: str | None = None,
        include_headers: bool = True,
        value_format: str = "raw",
        key_columns: Sequence[str] = (),
        value_columns: Sequence[str] = (),
        key_schema: str | None = None,
        value_schema: str | None = None,
        key_schema_id: int | None = None,
        value_schema_id: int | None = None,
        serializer: str | None = None,
        partitioner: str | None = None,
        token_function: str | None = None,
        dead_letter_topic: str | None = None,
        transaction_timeout: float | None = None,
        producer_pool_size: int = 16,
    ) -> None:
        _require_libraries()
        self.settings = {name.lower(): str(value) for name, value in kafka.items()}
        self.transaction_timeout: float = take_timeout(self.settings, transaction_timeout)
        self.row_format = RowFormat(
            topic,
            include_headers,
            value_format,
            tuple(key_columns),
            tuple(value_columns),
            key_schema_id,
            value_schema_id,
            key_schema,
            value_schema,
            serializer,
        )
        self.partitioner = partitioner
        self.token_function = token_function
        self.dead_letter_topic = dead_letter_topic
        self.producer_pool_size = producer_pool_size
        # What is wrong with the settings is wrong from the start.
        producer_settings(self.settings, Guarantee.NONE)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> KafkaSink:
        """The sink for what `read_options` made of `OPTIONS`."""
        return cls(
            kafka=values["kafka"],
            topic=values["topic"],
            include_headers=values["includeHeaders"],
            value_format=values["valueFormat"],
            key_columns=values["keyColumns"],
            value_columns=values["valueColumns"],
            key_schema=values["keySchema"],
            value_schema=values["valueSchema"],
            key_schema_id=values["keySchemaId"],
            value_schema_id=values["valueSchemaId"],
            serializer=values["serializer"],
            partitioner=values["partitioner"],
            token_function=values["tokenFunction"],
            dead_letter_topic=values["deadLetterTopic"],
            transaction_timeout=values["transactionTimeout"],
            producer_pool_size=values["producerPoolSize"],
        )

    def __repr__(self) -> str:
        return f"KafkaSink({self.settings['bootstrap.servers']!r}, {self._topics})"

    @property
    def target(self) -> str:
        """By the cluster's own id, which outlives its brokers: asked for once per process."""
        from assent.sinks.kafka_process import cluster_id

        return f"cluster {cluster_id(self._control())} {self._topics}"

    @property
    def _topics(self) -> str:
        topic = self.row_format.topic
        return "topics per row" if topic is None else f"topic {topic}"

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask rows, settings and cluster. In complete mode rows are appended, as Spark does."""
        from assent.sinks.kafka_check import check_cluster
        from assent.sinks.kafka_producer import connect

        self.row_format.check(schema)
        if self.partitioner is not None:
            load_function(self.partitioner, "partitioner")
        # librdkafka itself knows best what it does not know.
        connect(self._client_settings("assent-check"), self._token()).close()
        topics = {"topic": self.row_format.topic, "deadLetterTopic": self.dead_letter_topic}
        check_cluster(
            self._control(),
            [(option, name) for option, name in topics.items() if name is not None],
            self.transaction_timeout if self._exactly_once else None,
        )
        self._check_limits()

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> KafkaTransaction:
        from assent.sinks.kafka_partitioner import Partitioner
        from assent.sinks.kafka_process import lease_producer, release_producer
        from assent.sinks.kafka_producer import TaskProducer
        from assent.sinks.kafka_reserve import Ready

        settings = self._client_settings("", self._topic_limit())
        user = None
        if self.partitioner is not None:
            user = load_function(self.partitioner, "partitioner")
        with ExitStack() as undo:
            lease_producer(self.producer_pool_size)
            undo.callback(release_producer)
            ready = None
            if not name.again:
                ready = self._reserve(name).take(name, self._purpose(name.term, name.place))
            if ready is None:
                wanted = TransactionalId.of(name, mark(self.target)) if self._exactly_once else None
                ready = Ready(self._connect(wanted), wanted)
            producer = TaskProducer(
                ready.client,
                self.guarantee,
                transaction_timeout=self.transaction_timeout,
                partitioner=Partitioner(user, turn=name.partition + epoch),
                dead_letter_topic=self.dead_letter_topic,
                message_bytes=int(settings["message.max.bytes"]),
            )
            undo.callback(producer.close)
            producer.begin(_BEGIN_SECONDS)
            return KafkaTransaction(name, ready.transactional_id, producer, undo.pop_all())

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        for records in self.row_format.records(batch):
            transaction.producer.write(records)

    def pre_commit(self, transaction: KafkaTransaction) -> Handle:
        producer = transaction.producer
        identity = producer.finish()
        details = self._details(producer.partitions)
        if producer.dead_letters:
            details["deadLetters"] = str(producer.dead_letters)
        # Only after `finish`: until then the transaction is this task's to discard.
        client = producer.detach()
        transaction.release.close()
        if client is not None:
            self._prepare_next(transaction.name, client)
        if transaction.transactional_id is None or identity is None:
            return Handle(self.kind, str(transaction.name), details)
        name = f"{transaction.transactional_id}/{identity.producer_id}/{identity.epoch}"
        return Handle(self.kind, name, details)

    def discard(self, transaction: KafkaTransaction) -> None:
        from assent.sinks.kafka_markers import Ended
        from assent.sinks.kafka_process import forget_limit

        if self.row_format.topic is not None:
            forget_limit(self._control(), self.row_format.topic)
        with transaction.release:
            identity = transaction.producer.give_up(_DISCARD_SECONDS)
        if transaction.transactional_id is None or identity is None:
            return
        name = str(transaction.transactional_id)
        self._control().abort(name, identity.producer_id, identity.epoch)
        partitions = transaction.producer.partitions
        self._control().confirm([Ended(name, identity, False, partitions)])

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        if self._exactly_once:
            self._control().commit(*self._parts(handle))

    def abort(self, handle: Handle) -> None:
        if self._exactly_once:
            self._control().abort(*self._parts(handle))

    def confirm(self, handles: Sequence[Handle], end: Verdict) -> None:
        from assent.sinks.kafka_client import ProducerIdentity
        from assent.sinks.kafka_markers import Ended

        if not self._exactly_once:
            return
        ended = []
        for handle in handles:
            name, producer_id, epoch = self._parts(handle)
            partitions = parse_partitions(handle.details.get(_PARTITIONS, ""))
            producer = ProducerIdentity(producer_id, epoch)
            ended.append(Ended(name, producer, end is Verdict.COMMITTED, partitions))
        self._control().confirm(ended)

    def verdict(self, handle: Handle) -> Verdict:
        return self._control().verdict(*self._parts(handle))

    def pending(self, identity: str) -> Iterable[Pending]:
        mine = mark(self.target)
        found = []
        for described in self._control().transactions(prefix(identity)):
            known = TransactionalId.parse(described.transactional_id)
            if known is None or known.mark != mine:
                continue  # of another sink of the same query, which lists it itself
            producer = described.producer
            name = f"{known}/{producer.producer_id}/{producer.epoch}"
            handle = Handle(self.kind, name, self._details(described.partitions))
            found.append(Pending(handle, known.term, known.place, described.started_at, PLACES))
        return found

    # Inside.

    @property
    def _exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def _prepare_next(self, name: TransactionName, used: Client) -> None:
        """Have the next task's producer made while nobody waits, and the used one closed."""
        if name.again:
            used.close()
            return
        reserve = self._reserve(name)
        if not self._exactly_once:
            purpose = self._purpose(name.term, name.place)
            if not used.is_usable() or not reserve.keep(purpose, lambda: used):
                used.close()
            return
        expected = reserve.expected()
        if expected is None:
            used.close()
            return
        place, transactional_id = expected

        def make() -> Client:
            used.close()
            client = self._connect(transactional_id)
            try:
                client.begin(_AHEAD_SECONDS)
            except BaseException:
                client.close()
                raise
            return client

        purpose = self._purpose(transactional_id.term, place)
        if not reserve.keep(purpose, make, transactional_id):
            used.close()

    def _reserve(self, name: TransactionName) -> Reserve:
        from assent.sinks.kafka_process import shared_reserve

        # Without transactions an identity is made anew for every epoch.
        identity = name.identity if self._exactly_once else ""
        return shared_reserve(identity, mark(self.target))

    def _purpose(self, term: int, place: int) -> Hashable:
        """What a producer has to be made for, to serve a task."""
        settings = tuple(sorted(self._client_settings("", self._topic_limit()).items()))
        return (term, place) if self._exactly_once else None, settings, self.token_function

    def _connect(self, transactional_id: TransactionalId | None) -> Client:
        from assent.sinks.kafka_producer import connect

        settings = self._client_settings(str(transactional_id), self._topic_limit())
        return connect(settings, self._token())

    def _client_settings(
        self, transactional_id: str, topic_limit: int | None = None
    ) -> dict[str, str]:
        settings = dict(self.settings)
        if self._exactly_once:
            settings[TIMEOUT_SETTING] = str(round(1000 * self.transaction_timeout))
        return producer_settings(settings, self.guarantee, transactional_id, topic_limit)

    def _token(self) -> Any:
        if self.token_function is None:
            return None
        return load_function(self.token_function, "tokenFunction")

    def _control(self) -> KafkaControl:
        from assent.sinks.kafka_process import shared_control

        return shared_control(self.settings, self.token_function)

    def _topic_limit(self) -> int | None:
        from assent.sinks.kafka_process import topic_limit

        topic = self.row_format.topic
        return None if topic is None else topic_limit(self._control(), topic)

    def _check_limits(self) -> None:
        from assent.sinks.kafka_process import topic_limit

        limit = self._topic_limit()
        if limit is None or self.dead_letter_topic is None:
            return
        other = topic_limit(self._control(), self.dead_letter_topic)
        if other is not None and other < limit:
            raise ConfigurationError(
                f"option deadLetterTopic is {self.dead_letter_topic!r}, whose max.message.bytes "
                f"is {other}, below the {limit} of the topic: it could not take what it is for; "
                "raise it"
            )

    def _details(self, partitions: Partitions) -> dict[str, str]:
        return {"target": self.target, _PARTITIONS: format_partitions(partitions)}

    def _parts(self, handle: Handle) -> tuple[str, int, int]:
        if handle.kind != self.kind or handle.details.get("target", self.target) != self.target:
            raise ConfigurationError(
                f"handle {handle} belongs to another sink than the Kafka sink of {self.target}"
            )
        name, *numbers = handle.name.split("/")
        if not _PRODUCER.fullmatch("/".join(numbers)):
            raise ConfigurationError(
                f"handle {handle} does not name a transactional id, producer id and epoch"
            )
        return name, int(numbers[0]), int(numbers[1])


def _require_libraries() -> None:
    for library in ("confluent_kafka", "kafka"):
        if importlib.util.find_spec(library) is None:
            raise ImportError(
                "the Kafka sink needs confluent-kafka and kafka-python: pip install 'assent[kafka]'"
            )
