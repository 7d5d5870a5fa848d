"""Spark's own Kafka connector, for pipelines, and for checks that share no code with the sinks."""

from __future__ import annotations

from pathlib import Path

import pyspark

from assent.testing.jars import Artifact, JarsUnavailable, is_cached, resolve

_CLIENTS = "3.9.1"
_POOL = "2.12.1"
_TOKENS_BEFORE = "4.0.0"
"""The newest release of the token provider that is to be had everywhere; it fits the others."""


def connector_jars(version: str = pyspark.__version__) -> list[Path]:
    """The jars for `spark.jars` with which the format `kafka` works in that Spark.

    Fetched one by one: no release of the connector's own list can be resolved as a whole.
    """
    jars = [
        *resolve(Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", version), alone=True),
        *resolve(Artifact("org.apache.kafka", "kafka-clients", _CLIENTS), alone=True),
        *resolve(Artifact("org.apache.commons", "commons-pool2", _POOL), alone=True),
    ]
    name = "spark-token-provider-kafka-0-10_2.13"
    tokens = Artifact("org.apache.spark", name, version)
    before = Artifact("org.apache.spark", name, _TOKENS_BEFORE)
    if is_cached(before, alone=True):
        return jars + resolve(before, alone=True)
    try:
        return jars + resolve(tokens, alone=True)
    except JarsUnavailable:
        return jars + resolve(before, alone=True)
