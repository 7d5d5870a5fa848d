"""Rows for COPY, against an encoder that goes value by value. What a server makes of them is in
test_postgres_types.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assent.protocol.errors import AssentError
from assent.sinks import postgres_binary
from assent.sinks.postgres_binary import cells, rows

ELEMENT = 3_000_000_000  # servers number types of their own up to 2**32
DAYS, MICROSECONDS = 10_957, 946_684_800_000_000

Encode = Callable[[Any], bytes]


def packed(form: str, shift: int = 0) -> Encode:
    return lambda value: struct.pack(f">{form}", value - shift)


def interval(value: int) -> bytes:
    return struct.pack(">qii", value, 0, 0)


def texts(value: list[str | None]) -> bytes:
    """An array of texts, as `array_send` of the server has it."""
    if not value:
        return struct.pack(">iiI", 0, 0, ELEMENT)
    head = struct.pack(">iiIii", 1, None in value, ELEMENT, len(value), 1)
    return head + b"".join(cell(item, str.encode) for item in value)


def cell(value: Any, encode: Encode) -> bytes:
    if value is None:
        return struct.pack(">i", -1)
    data = encode(value)
    return struct.pack(">i", len(data)) + data


_INT64 = st.integers(-(2**63), 2**63 - 1)
# In three characters there is one of each width; a fixed number of them often has one width.
_TEXTS = st.text("aé€", max_size=3) | st.text("ab", min_size=2, max_size=2)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Encode]] = {
    "int2": (pa.int16(), st.integers(-(2**15), 2**15 - 1), packed("h")),
    "int4": (pa.int32(), st.integers(-(2**31), 2**31 - 1), packed("i")),
    "int8": (pa.int64(), _INT64, packed("q")),
    "float4": (pa.float32(), st.floats(width=32, allow_nan=False), packed("f")),
    "float8": (pa.float64(), st.floats(allow_nan=False), packed("d")),
    "bool": (pa.bool_(), st.booleans(), packed("B")),
    "date": (pa.date32(), st.integers(DAYS - 2**31 + 1, 2**31 - 1), packed("i", DAYS)),
    "timestamp": (
        pa.timestamp("us"),
        st.integers(MICROSECONDS - 2**63 + 1, 2**63 - 1),
        packed("q", MICROSECONDS),
    ),
    "time": (pa.time64("us"), st.integers(0, 86_399_999_999), packed("q")),
    "interval": (pa.duration("us"), _INT64, interval),
    "text": (pa.string(), _TEXTS, str.encode),
    "large text": (pa.large_string(), _TEXTS, str.encode),
    "code": (pa.string(), st.text("ab", min_size=2, max_size=2), str.encode),
    "bytea": (pa.binary(), st.binary(max_size=3), bytes),
    "text[]": (pa.list_(pa.string()), st.lists(st.none() | _TEXTS, max_size=3), texts),
}


@given(data=st.data())
def test_rows_are_what_they_are_value_by_value(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    count = data.draw(st.integers(1, 6))
    begin = data.draw(st.integers(0, count - 1))
    arrays, columns = [], []
    for name in kinds:
        kind, values, _ = KINDS[name]
        values = values if data.draw(st.booleans()) else st.none() | values
        found = data.draw(st.lists(values, min_size=count, max_size=count))
        columns.append(found[begin:])
        arrays.append(pa.array(found, kind).slice(begin))
    wanted = b"".join(
        struct.pack(">h", len(kinds))
        + b"".join(cell(value, KINDS[name][2]) for name, value in zip(kinds, row, strict=True))
        for row in zip(*columns, strict=True)
    )
    made = [
        cells(array, ELEMENT if "[]" in name else None)
        for name, array in zip(kinds, arrays, strict=True)
    ]
    assert bytes(rows(made, count - begin)) == wanted


def test_arrays_say_for_themselves_whether_they_hold_nulls() -> None:
    values: list[list[str | None] | None] = [["a", None], ["b"], [], None, [None], ["é", "c"]]
    wanted = b"".join(struct.pack(">h", 1) + cell(value, texts) for value in values)
    column = cells(pa.array(values, pa.list_(pa.string())), ELEMENT)
    assert bytes(rows([column], len(values))) == wanted


def test_what_a_null_hides_is_not_sent() -> None:
    hidden = pa.Array.from_buffers(
        pa.string(),
        2,
        [
            pa.py_buffer(b"\x01"),
            pa.py_buffer(struct.pack("<iii", 0, 2, 8)),
            pa.py_buffer(b"absecret"),
        ],
    )
    assert hidden.to_pylist() == ["ab", None]
    wanted = struct.pack(">hi", 1, 2) + b"ab" + struct.pack(">hi", 1, -1)
    assert bytes(rows([cells(hidden)], 2)) == wanted


def test_a_value_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binary, "_LARGEST", 3)
    assert cells(pa.array(["abc"])).lengths == 3
    with pytest.raises(AssentError, match="a value has 4 bytes, and PostgreSQL takes 3 at most"):
        cells(pa.array(["abcd", None]))
