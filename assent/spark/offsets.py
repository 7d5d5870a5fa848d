"""The listener that the option commitOffsets asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assent.protocol.errors import ConfigurationError
from assent.protocol.sink import Sink
from assent.sinks.kafka import KafkaSink
from assent.spark.assembly import open_checkpoint
from assent.spark.settings import Settings

if TYPE_CHECKING:
    from assent.sinks.kafka_offsets import KafkaOffsets


def offsets_publisher(settings: Settings, sinks: Sequence[Sink[Any]]) -> list[KafkaOffsets]:
    """The publisher of the source's offsets, if there is to be one."""
    group = settings.offsets_group
    if group is None:
        if settings.offsets_cluster:
            raise ConfigurationError(
                "options commitOffsets.kafka.* are set, but commitOffsets is not: set it to the "
                "consumer group to which offsets are published"
            )
        return []
    if settings.checkpoint_location is None:
        raise ConfigurationError(
            f"option commitOffsets is {group!r}, which needs the option checkpointLocation on the "
            "writer itself: offsets are read from Spark's checkpoint"
        )
    cluster, token = dict(settings.offsets_cluster), None
    if not cluster:
        kafka = next((sink for sink in sinks if isinstance(sink, KafkaSink)), None)
        if kafka is None:
            raise ConfigurationError(
                f"option commitOffsets is {group!r}, and no sink is Kafka: say where the group is, "
                "with commitOffsets.kafka.bootstrap.servers"
            )
        cluster, token = kafka.settings, kafka.token_function
    # Only here: the libraries of the extra are needed by nobody else.
    from assent.sinks.kafka_group import ConsumerGroup
    from assent.sinks.kafka_offsets import KafkaOffsets
    from assent.sinks.kafka_process import shared_control

    _, checkpoint = open_checkpoint(settings.checkpoint_location)
    brokers = shared_control(cluster, token).brokers
    return [KafkaOffsets(ConsumerGroup(brokers, group), checkpoint)]


def check_offsets(settings: Settings, publishers: Sequence[KafkaOffsets]) -> None:
    """Raise, before a row is written, if the offsets of the running epoch cannot be published."""
    for publisher in publishers:
        assert settings.checkpoint_location is not None
        epoch = open_checkpoint(settings.checkpoint_location)[1].newest_epoch()
        if epoch is not None:
            publisher.check(epoch)
