"""Options: what is read, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from assent.protocol.errors import ConfigurationError
from assent.sinks.option import (
    Option,
    Parser,
    boolean,
    choice,
    columns,
    duration,
    positive_integer,
    ratio,
    read_options,
    text,
)

KNOWN = (
    Option("path", text, description="where the rows go"),
    Option("fileFormat", choice("parquet", "json", "csv"), "parquet"),
    Option("maxOpenWriters", positive_integer, 64),
    Option("password", choice("hunter2"), None, secret=True),
    Option("kafka", text, {}, prefix=True),
)


def read(**given: str) -> dict[str, Any]:
    return read_options({"path": "/x", **given}, KNOWN, sink="assent-test")


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_options(given, KNOWN, sink="assent-test")
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_every_known_option_has_a_value() -> None:
    assert read() == {
        "path": "/x",
        "fileFormat": "parquet",
        "maxOpenWriters": 64,
        "password": None,
        "kafka": {},
    }


@pytest.mark.parametrize("name", ["fileFormat", "fileformat", "FILEFORMAT"])
def test_names_match_whatever_their_case(name: str) -> None:
    assert read(**{name: "JSON"})["fileFormat"] == "json"


def test_a_name_in_two_cases_is_refused_when_the_values_differ() -> None:
    assert read(fileFormat="json", fileformat="JSON")["fileFormat"] == "json"
    message = refusal({"path": "/x", "fileFormat": "json", "fileformat": "csv"})
    assert "fileFormat is given twice" in message


def test_an_unknown_name_is_refused_with_the_nearest_and_all_others() -> None:
    message = refusal({"path": "/x", "fileformats": "json"})
    assert "assent-test: unknown option fileformats" in message
    assert "did you mean fileFormat?" in message
    assert "(valid options: fileFormat, kafka.*, maxOpenWriters, password, path)" in message


def test_an_unknown_name_far_from_all_others_gets_no_guess() -> None:
    message = refusal({"path": "/x", "zzz": "1"})
    assert "did you mean" not in message
    assert "valid options: fileFormat" in message


def test_a_bad_value_is_refused_with_name_value_and_what_is_allowed() -> None:
    message = refusal({"path": "/x", "fileformat": "orc"})
    assert message == (
        "assent-test: option fileFormat is 'orc'; expected one of parquet, json, csv"
    )


def test_a_bad_secret_is_not_shown() -> None:
    assert "swordfish" not in refusal({"path": "/x", "password": "swordfish"})


def test_a_secret_is_not_shown_by_a_parser_that_repeats_it() -> None:
    known = (Option("pin", Parser("a number", int), None, secret=True),)
    with pytest.raises(ConfigurationError) as caught:
        read_options({"pin": "swordfish"}, known, sink="assent-test")
    assert "swordfish" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_missing_required_option_is_named_with_the_remedy() -> None:
    message = refusal({})
    assert "option path is missing (where the rows go)" in message
    assert '.option("path", …)' in message


def test_a_prefix_collects_what_begins_with_it() -> None:
    values = read(**{"kafka.bootstrap.servers": "a:1", "Kafka.acks": "all"})
    assert values["kafka"] == {"bootstrap.servers": "a:1", "acks": "all"}


@pytest.mark.parametrize("key", ["kafka.", "kafka", "kafkaacks"])
def test_a_prefix_alone_is_unknown(key: str) -> None:
    assert f"unknown option {key}" in refusal({"path": "/x", key: "1"})


def test_a_required_prefix_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"option kafka\.<name> is missing"):
        read_options({}, (Option("kafka", text, prefix=True),), sink="assent-test")


@pytest.mark.parametrize(
    ("parser", "given", "value"),
    [
        (boolean, "true", True),
        (boolean, "False", False),
        (positive_integer, "7", 7),
        (ratio, "0.8", 0.8),
        (ratio, "1", 1.0),
        (ratio, ".5", 0.5),
        (choice("a", "B"), "b", "B"),
        (columns, "a, b ,c", ("a", "b", "c")),
        (duration, "30s", 30.0),
        (duration, "5m", 300.0),
        (duration, "1h", 3600.0),
        (duration, "2d", 172800.0),
        (duration, "250ms", 0.25),
        (duration, "1.5", 1.5),
        (text, " kept ", " kept "),
    ],
)
def test_what_parsers_read(parser: Parser[Any], given: str, value: object) -> None:
    assert parser.read(given) == value


@pytest.mark.parametrize(
    ("parser", "given"),
    [
        (boolean, "yes"),
        (boolean, "1"),
        (boolean, ""),
        (positive_integer, "0"),
        (positive_integer, "-1"),
        (positive_integer, "1.0"),
        (positive_integer, "1_000"),
        (positive_integer, "٣"),
        (ratio, "0"),
        (ratio, "1.1"),
        (ratio, "nan"),
        (ratio, "-0.5"),
        (choice("a", "B"), "c"),
        (columns, ""),
        (columns, "a,,b"),
        (duration, "0s"),
        (duration, "-1s"),
        (duration, "5 weeks"),
        (duration, "inf"),
        (duration, ""),
        (text, ""),
    ],
)
def test_what_parsers_refuse(parser: Parser[Any], given: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        read_options({"it": given}, (Option("it", parser),), sink="assent-test")
