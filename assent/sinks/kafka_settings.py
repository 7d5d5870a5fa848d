"""From the options `kafka.*` to settings of librdkafka: what passes, what is refused, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee

Settings: TypeAlias = Mapping[str, str]

_NUMBER = re.compile(r"[0-9]{1,18}")

# The Java client's max.request.size, so that a row which Spark's own sink writes is written.
_REQUEST_BYTES = 1_048_576
# What a batch of one record takes beside the record, which librdkafka does not count.
_BATCH_OVERHEAD = 61
_SMALLEST_LIMIT = 1000
_BATCH_BYTES = 1_000_000
# Nobody waits for it: rows are seen when their epoch is committed, and the last ones of a task are
# sent at once. With less, batches leave half full, and librdkafka is busy looking for more.
_LINGER_MILLISECONDS = 50
# Of the data in the queue; librdkafka itself would let a gigabyte pile up in every task.
_QUEUE_KBYTES = 65_536
# Each takes some 300 bytes beside its data; so few stay in the processor's cache. If they are
# spread over so many partitions that no batch gets full, so many leave whenever linger is over.
_QUEUE_MESSAGES = 60_000

TIMEOUT_SETTING = "transaction.timeout.ms"
DEFAULT_TIMEOUT = 900.0
"""Of transactions: as long as brokers allow unless they are told otherwise."""

_NOTHING = "librdkafka has nothing like it: remove the option"
_PEM = "librdkafka reads PEM files and PKCS#12 keystores, no Java keystores: "

JAVA_ONLY: Mapping[str, str] = {
    "auto.include.jmx.reporter": _NOTHING,
    "buffer.memory": "set kafka.queue.buffering.max.kbytes, in KiB",
    "compression.gzip.level": "set kafka.compression.level",
    "compression.lz4.level": "set kafka.compression.level",
    "compression.zstd.level": "set kafka.compression.level",
    "config.providers": _NOTHING,
    "interceptor.classes": _NOTHING,
    "key.serializer": "keys are written as they are; set option keyColumns, or serializer",
    "max.block.ms": "set kafka.socket.timeout.ms for calls, kafka.message.timeout.ms for rows",
    "max.request.size": "set kafka.message.max.bytes",
    "metadata.max.idle.ms": "set kafka.topic.metadata.refresh.interval.ms",
    "metric.reporters": _NOTHING,
    "metrics.num.samples": _NOTHING,
    "metrics.recording.level": _NOTHING,
    "metrics.sample.window.ms": _NOTHING,
    "partitioner.adaptive.partitioning.enable": "rows without key rotate batch by batch: remove it",
    "partitioner.availability.timeout.ms": _NOTHING,
    "partitioner.class": "set option partitioner to a function of your own, module:function",
    "partitioner.ignore.keys": "set option partitioner to a function of your own",
    "receive.buffer.bytes": "set kafka.socket.receive.buffer.bytes",
    "sasl.client.callback.handler.class": "set option tokenFunction, module:function",
    "sasl.jaas.config": "set kafka.sasl.username and kafka.sasl.password",
    "sasl.kerberos.kinit.cmd.path": "set kafka.sasl.kerberos.kinit.cmd, the whole command",
    "sasl.login.callback.handler.class": "set option tokenFunction, module:function",
    "sasl.login.class": _NOTHING,
    "sasl.oauthbearer.jwt.retriever.class": "set kafka.sasl.oauthbearer.method to oidc",
    "security.providers": _NOTHING,
    "send.buffer.bytes": "set kafka.socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "set kafka.socket.connection.setup.timeout.ms",
    "ssl.enabled.protocols": "librdkafka agrees with the broker on the newest: remove the option",
    "ssl.engine.factory.class": _NOTHING,
    "ssl.keymanager.algorithm": _NOTHING,
    "ssl.keystore.certificate.chain": "set kafka.ssl.certificate.pem",
    "ssl.keystore.key": "set kafka.ssl.key.pem",
    "ssl.keystore.type": f"{_PEM}remove the option",
    "ssl.protocol": "librdkafka agrees with the broker on the newest: remove the option",
    "ssl.provider": _NOTHING,
    "ssl.secure.random.implementation": _NOTHING,
    "ssl.trustmanager.algorithm": _NOTHING,
    "ssl.truststore.certificates": "set kafka.ssl.ca.pem",
    "ssl.truststore.location": f"{_PEM}set kafka.ssl.ca.location to a PEM file",
    "ssl.truststore.password": f"{_PEM}kafka.ssl.ca.location needs no password",
    "ssl.truststore.type": f"{_PEM}set kafka.ssl.ca.location to a PEM file",
    "value.serializer": "values are written as they are; set option valueFormat, or serializer",
}
"""Producer settings of the Java client without a namesake here, and what to do instead."""

_OURS: Mapping[str, str] = {
    "transactional.id": "Assent names its transactions itself, from the query's identity",
    "delivery.report.only.error": "Assent sets it itself",
    "log.queue": "Assent sets it itself; logs go to the logger assent.kafka",
    "enabled_events": "Assent sets it itself",
    "partitioner": "rows are placed before librdkafka sees them; set option partitioner",
    "sticky.partitioning.linger.ms": "rows are placed before librdkafka sees them",
    "group.id": "the sink writes only",
}
_SECRETS = ("password", "secret", "pem", "sasl.oauthbearer.config", "jaas", "assertion", "token")
_ALL_REPLICAS = ("all", "-1")


def is_secret(name: str) -> bool:
    """Whether the value of a setting is kept out of messages."""
    return any(part in name for part in _SECRETS)


def producer_settings(
    given: Settings,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    transactional_id: str | None = None,
    topic_limit: int | None = None,
) -> dict[str, str]:
    """The settings of one producer, from what follows `kafka.` in the user's options.

    `topic_limit` is the smallest `max.message.bytes` of the topics that will be written. Brokers
    apply it to whole batches, which librdkafka, unlike the Java client, does not split when they
    are refused: so batches have to be smaller from the start.

    ConfigurationError for what only the Java client knows and for what would break the promise
    of the guarantee. Names that librdkafka does not know are refused when the client is made.
    """
    settings = {name.lower(): value for name, value in given.items()}
    for name, value in settings.items():
        if name in JAVA_ONLY:
            raise ConfigurationError(
                f"option kafka.{name} is known to the Java client alone; {JAVA_ONLY[name]}"
            )
        if name in _OURS:
            raise ConfigurationError(f"option kafka.{name} cannot be set: {_OURS[name]}")
        if guarantee is not Guarantee.NONE:
            _refuse_broken(name, value, guarantee)
    if not settings.get("bootstrap.servers"):
        raise ConfigurationError(
            "option kafka.bootstrap.servers is missing; set it to host:port of one or more brokers"
        )
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"  # as the Java client spells it
    limit = min(topic_limit or _REQUEST_BYTES, _REQUEST_BYTES) - _BATCH_OVERHEAD
    row_bytes = _number(settings, "message.max.bytes", max(limit, _SMALLEST_LIMIT))
    queue_kbytes = max(_QUEUE_KBYTES, 4 * row_bytes // 1024)
    if _number(settings, "queue.buffering.max.kbytes", queue_kbytes) * 1024 < row_bytes:
        raise ConfigurationError(
            f"option kafka.queue.buffering.max.kbytes is "
            f"{settings['queue.buffering.max.kbytes']!r}, which leaves no room for one row of "
            f"{row_bytes} bytes (kafka.message.max.bytes); raise it"
        )
    debug = [name for name in settings.get("debug", "").split(",") if name]
    settings = {
        "message.max.bytes": str(row_bytes),
        "batch.size": str(min(_BATCH_BYTES, row_bytes)),
        "linger.ms": str(_LINGER_MILLISECONDS),
        "queue.buffering.max.kbytes": str(queue_kbytes),
        "queue.buffering.max.messages": str(_QUEUE_MESSAGES),
        # librdkafka opens its second connection half of this after its first one.
        "reconnect.backoff.ms": "20",
        "statistics.interval.ms": "1000",
        **settings,
        "delivery.report.only.error": "true",
        "log.queue": "true",
    }
    if guarantee is Guarantee.EXACTLY_ONCE:
        if transactional_id is None:
            raise ValueError("exactly_once needs a transactional id")
        settings["transactional.id"] = transactional_id
        # Tells producer id and epoch at once, in a few lines per transaction.
        settings["debug"] = ",".join(dict.fromkeys([*debug, "eos"]))
    if guarantee is not Guarantee.NONE:
        settings["enable.idempotence"] = "true"
    return settings


def take_timeout(settings: dict[str, str], option: float | None) -> float:
    """The transaction timeout in seconds, by the option or the setting, which is taken out.

    Users of Spark's own sink know it as `kafka.transaction.timeout.ms`.
    """
    setting = settings.pop(TIMEOUT_SETTING, None)
    if setting is None:
        return DEFAULT_TIMEOUT if option is None else option
    if not _NUMBER.fullmatch(setting) or not 0 < int(setting) < 1 << 31:
        raise ConfigurationError(
            f"option kafka.{TIMEOUT_SETTING} is {setting!r}; expected a number of milliseconds"
        )
    seconds = int(setting) / 1000
    if option is not None and option != seconds:
        raise ConfigurationError(
            f"option transactionTimeout is {option:g} s, and kafka.{TIMEOUT_SETTING} is "
            f"{seconds:g} s; leave one of them out"
        )
    return seconds


def _refuse_broken(name: str, value: str, guarantee: Guarantee) -> None:
    if name == "enable.idempotence" and value.strip().lower() not in ("true", "t", "1"):
        why = "retries could then repeat or reorder rows"
    elif name in ("acks", "request.required.acks") and value.strip().lower() not in _ALL_REPLICAS:
        why = "a row could then be lost with one broker; leave it out, or set it to all"
    else:
        return
    raise ConfigurationError(
        f"option kafka.{name} is {value!r}, which breaks the guarantee {guarantee.value}: {why}"
    )


def _number(settings: Settings, name: str, default: int) -> int:
    text = settings.get(name, str(default)).strip()
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(f"option kafka.{name} is {text!r}; expected a whole number")
    return int(text)
