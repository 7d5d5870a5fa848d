"""Partitions as text: what is written is read back, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assent.sinks.kafka_partitions import format_partitions, parse_partitions

topics = st.text("abc.-_0", min_size=1, max_size=8)
partitions = st.dictionaries(topics, st.sets(st.integers(0, 2000), min_size=1, max_size=30))


@given(partitions)
def test_what_is_written_is_read_back(given: dict[str, set[int]]) -> None:
    form = format_partitions(given)
    assert parse_partitions(form) == {topic: tuple(sorted(each)) for topic, each in given.items()}


def test_many_are_short() -> None:
    assert format_partitions({"views": range(1000)}) == "views:0-999"
    assert format_partitions({"views": ()}) == ""
    assert parse_partitions("") == {}


@pytest.mark.parametrize(
    "form", ["views", "views:", ":1", "views:a", "views:1-", "views:-1", "views:1,2", "a:1//b:1"]
)
def test_what_is_none_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match="not a list of partitions"):
        parse_partitions(form)
