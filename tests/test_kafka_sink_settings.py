"""The Kafka sink before anything is connected: options, names, and what is never shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import assent
from assent.protocol.errors import ConfigurationError
from assent.protocol.name import TransactionName, prefix
from assent.sinks.kafka import KafkaSink
from assent.sinks.kafka_id import TransactionalId
from assent.sinks.kafka_settings import DEFAULT_TIMEOUT
from assent.sinks.mark import mark
from assent.sinks.option import read_options
from assent.spark.settings import OPTIONS

SERVERS = {"bootstrap.servers": "b:9092, a:9092"}
SECRET = "hunter2-and-more"


def from_options(**given: str) -> KafkaSink:
    options = {"kafka.bootstrap.servers": "a:9092"} | {
        name.replace("_", "."): value for name, value in given.items()
    }
    return KafkaSink.from_options(read_options(options, KafkaSink.OPTIONS, sink="assent-kafka"))


def test_options_become_settings() -> None:
    sink = from_options(
        topic="views",
        includeheaders="false",
        valueformat="avro",
        keycolumns="user, app",
        valuecolumns="page",
        keyschema='"string"',
        valueschema='"bytes"',
        keyschemaid="3",
        valueschemaid="4",
        partitioner="module:place",
        tokenfunction="module:token",
        deadlettertopic="dead",
        transactiontimeout="2m",
        producerpoolsize="3",
        kafka_linger_ms="5",
    )
    row_format = sink.row_format
    assert row_format.topic == "views"
    assert row_format.include_headers is False
    assert row_format.value_format == "avro"
    assert row_format.key_columns == ("user", "app")
    assert row_format.value_columns == ("page",)
    assert (row_format.key_schema, row_format.value_schema) == ('"string"', '"bytes"')
    assert (row_format.key_schema_id, row_format.value_schema_id) == (3, 4)
    assert sink.partitioner == "module:place"
    assert sink.token_function == "module:token"
    assert sink.dead_letter_topic == "dead"
    assert sink.transaction_timeout == 120.0
    assert sink.producer_pool_size == 3
    assert sink.settings == {"bootstrap.servers": "a:9092", "linger.ms": "5"}
    assert from_options(serializer="module:make").row_format.serializer == "module:make"


def test_every_option_is_described_and_reaches_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs" / "kafka.md").read_text()
    for option in KafkaSink.OPTIONS:
        assert option.description
        assert f"`{option}`" in page, option.name


def test_every_shared_option_reaches_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs" / "options.md").read_text()
    for option in OPTIONS:
        assert option.description
        assert f"`{option}`" in page, option.name


def test_without_servers_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        KafkaSink({}, topic="views")


def test_what_only_the_java_client_knows_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.sasl\.username"):
        from_options(kafka_sasl_jaas_config=f"password={SECRET}")


def test_the_timeout_by_either_name() -> None:
    assert from_options().transaction_timeout == DEFAULT_TIMEOUT == 900.0
    assert from_options(kafka_transaction_timeout_ms="30000").transaction_timeout == 30.0
    both = from_options(kafka_transaction_timeout_ms="30000", transactionTimeout="30s")
    assert both.transaction_timeout == 30.0
    with pytest.raises(ConfigurationError, match=r"20 s.*30 s"):
        from_options(kafka_transaction_timeout_ms="30000", transactionTimeout="20s")
    with pytest.raises(ConfigurationError, match="expected a number of milliseconds"):
        from_options(kafka_transaction_timeout_ms="soon")


def test_no_secret_is_shown() -> None:
    sink = KafkaSink({**SERVERS, "sasl.username": "user", "sasl.password": SECRET}, topic="views")
    assert SECRET not in repr(sink) + str(sink)
    assert "b:9092" in repr(sink)


def test_it_is_pickled_with_all_its_settings() -> None:
    sink = KafkaSink(SERVERS, topic="views", transaction_timeout=30, dead_letter_topic="dead")
    received = pickle.loads(pickle.dumps(sink))
    assert vars(received) == vars(sink)


NUMBERS = st.integers(0, 10**9)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_an_id_can_be_read_back(term: int, place: int, partition: int, attempt: int) -> None:
    name = TransactionName("3f2a9c0d3f2a9c0d", term, place, partition, "5be1", attempt)
    made = TransactionalId.of(name, mark("target"))
    assert TransactionalId.parse(str(made)) == made
    assert str(made).startswith(prefix(name.identity))
    assert made.place == place % 2
    # Kafka's own limit lies far above.
    assert len(str(made)) < 120


@pytest.mark.parametrize(
    "text", ["", "assent-3f2a9c0d-1-0-0-0", "assent-check", "other-3f2a9c0d-1-0-0-0-00000000"]
)
def test_other_ids_are_not_ours(text: str) -> None:
    assert TransactionalId.parse(text) is None


WITHOUT = """
import sys
sys.modules[{library!r}] = None
import pyspark_assent, pyspark_assent_kafka, assent
from assent.spark.source import AssentSource
assert pyspark_assent_kafka.DefaultSource.name() == "assent-kafka"
for make in (
    lambda: assent.KafkaSink({{"bootstrap.servers": "a:9092"}}),
    lambda: pyspark_assent_kafka.DefaultSource({{"kafka.bootstrap.servers": "a:9092"}}),
):
    try:
        make()
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("library", ["confluent_kafka", "kafka"])
def test_without_the_extra_discovery_works_and_the_sink_names_the_remedy(library: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(library=library)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'assent[kafka]'") == 2


def test_the_public_name_is_the_sink() -> None:
    assert assent.KafkaSink is KafkaSink
    with pytest.raises(AttributeError, match="NoSuchSink"):
        assent.NoSuchSink  # noqa: B018
