"""What the Kafka sinks of one process share: connections, what is known of topics, producers.

A sink is made anew for every epoch and pickled into every task; these are not.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping

from assent.protocol.errors import ConfigurationError
from assent.sinks.function import load_function
from assent.sinks.kafka_control import KafkaControl
from assent.sinks.kafka_forecast import Forecast
from assent.sinks.kafka_reserve import Reserve

_lock = threading.Lock()
_controls: dict[tuple[tuple[tuple[str, str], ...], str | None], KafkaControl] = {}
_limits: dict[tuple[KafkaControl, str], int | None] = {}
_clusters: dict[KafkaControl, str] = {}
_reserves: dict[tuple[int, str, str], Reserve] = {}
_producers = 0


def shared_control(settings: Mapping[str, str], token_function: str | None) -> KafkaControl:
    """The control plane for these settings."""
    key = (tuple(sorted(settings.items())), token_function)
    with _lock:
        known = _controls.get(key)
        if known is None:
            token = None
            if token_function is not None:
                token = load_function(token_function, "tokenFunction")
            known = _controls[key] = KafkaControl(settings, token)
        return known


def topic_limit(control: KafkaControl, topic: str) -> int | None:
    """The topic's `max.message.bytes`, asked for once; None if the broker does not tell."""
    key = (control, topic)
    if key not in _limits:
        found = control.brokers.topic_settings(topic, ["max.message.bytes"])
        text = found.get("max.message.bytes")
        _limits[key] = None if text is None else int(text)
    return _limits[key]


def forget_limit(control: KafkaControl, topic: str) -> None:
    """Ask for it again the next time: it may be what a task failed over, and mended since."""
    _limits.pop((control, topic), None)


def cluster_id(control: KafkaControl) -> str:
    """The id of the cluster, asked for once. RetriableError if no broker can be reached."""
    if control not in _clusters:
        _clusters[control] = control.brokers.cluster().cluster_id
    return _clusters[control]


def shared_reserve(identity: str, mark: str) -> Reserve:
    """The producer that is kept ready for one sink of the query of that identity."""
    key = (os.getpid(), identity, mark)  # a forked process has none of its parent's producers
    with _lock:
        known = _reserves.get(key)
        if known is None:
            known = _reserves[key] = Reserve(Forecast(identity, mark))
        return known


@atexit.register
def _close() -> None:
    for control in _controls.values():
        control.close()


def lease_producer(limit: int) -> None:
    """Count one more producer. ConfigurationError if that would be more than the limit.

    Each has threads, connections and a queue of its own.
    """
    global _producers
    with _lock:
        if _producers >= limit:
            raise ConfigurationError(
                f"{_producers} Kafka producers are open in this process, and option "
                f"producerPoolSize allows {limit}; raise it, or write into fewer sinks at once"
            )
        _producers += 1


def release_producer() -> None:
    """Count one less."""
    global _producers
    with _lock:
        _producers -= 1
