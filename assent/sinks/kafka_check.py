"""What is asked of a Kafka cluster before a query starts."""

from __future__ import annotations

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_brokers import Cluster
from assent.sinks.kafka_control import KafkaControl

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_AUTO_CREATE = "auto.create.topics.enable"
# An identity that no ledger has.
_NOBODY = "assent-0000000000000000-check"


def check_cluster(
    control: KafkaControl, topics: list[tuple[str, str]], transaction_timeout: float | None
) -> None:
    """ConfigurationError for what cannot work; RetriableError if no broker can be reached.

    `topics` are pairs of option and name. `transaction_timeout` is None without transactions.
    """
    cluster = control.brokers.cluster([_MAX_TIMEOUT, _AUTO_CREATE])
    for option, name in topics:
        _check_topic(control, cluster, option, name)
    if transaction_timeout is not None:
        _check_timeout(cluster, transaction_timeout)
        # Both are needed after a crash, and what the broker is too old for or this user may not
        # do is better known now.
        control.transactions(_NOBODY)
        control.describe(_NOBODY)


def _check_topic(control: KafkaControl, cluster: Cluster, option: str, name: str) -> None:
    topic = control.brokers.topic(name)
    if topic is None:
        # A broker that does not tell may create it: the first task will know.
        if cluster.settings.get(_AUTO_CREATE, "true") != "true":
            raise ConfigurationError(
                f"option {option} is {name!r}; there is no such topic, and the brokers create none "
                f"by themselves ({_AUTO_CREATE}): create it first"
            )
    elif topic.may_write is False:
        raise ConfigurationError(
            f"option {option} is {name!r}; the Kafka broker does not let this user write to it: "
            "it needs the operation Write on it"
        )


def _check_timeout(cluster: Cluster, seconds: float) -> None:
    highest = cluster.settings.get(_MAX_TIMEOUT)
    if highest is not None and seconds * 1000 > int(highest):
        raise ConfigurationError(
            f"option transactionTimeout is {seconds:g} s, but the brokers allow no more than "
            f"{int(highest) / 1000:g} s ({_MAX_TIMEOUT}={highest}); lower the one or raise the "
            "other"
        )
