"""The fingerprint: blind to the order and cut of rows, and to nothing else."""

from __future__ import annotations

import doctest
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assent.protocol import fingerprint, lanes
from assent.protocol.errors import ConfigurationError
from assent.protocol.fingerprint import Fingerprint

Values = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Kind:
    """An Arrow type, and Python values for it that differ exactly when their repr does."""

    type: pa.DataType
    values: Values


def of(*batches: pa.RecordBatch) -> str:
    taken = Fingerprint()
    for rows in batches:
        taken.update(rows)
    return str(taken)


def batch(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), [f"c{place}" for place in range(len(columns))])


def integers(bits: int, signed: bool = True) -> Values:
    low = -(2 ** (bits - 1)) if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    return st.integers(0, 1) | st.integers(low, high)


TEXT = st.text("ab\0é", max_size=12)
BINARY = st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"\0\0", b"x" * 4096, b"x" * 4097])
NATURAL = st.integers(0, 86_000)

PLAIN = [
    Kind(pa.null(), st.none()),
    Kind(pa.bool_(), st.booleans()),
    *(Kind(getattr(pa, f"int{bits}")(), integers(bits)) for bits in (8, 16, 32, 64)),
    *(Kind(getattr(pa, f"uint{bits}")(), integers(bits, False)) for bits in (8, 16, 32, 64)),
    Kind(pa.float16(), st.floats(width=16, allow_nan=False).map(np.float16)),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.float64(), st.floats()),
    Kind(pa.decimal128(12, 2), st.decimals(-(10**6), 10**6, places=2)),
    Kind(pa.decimal256(40, 2), st.decimals(-(10**30), 10**30, places=2)),
    Kind(pa.date32(), NATURAL),
    Kind(pa.date64(), NATURAL.map(lambda day: day * 86_400_000)),
    Kind(pa.time32("s"), NATURAL),
    Kind(pa.time64("us"), NATURAL),
    Kind(pa.timestamp("us", "UTC"), integers(48)),
    Kind(pa.timestamp("ns"), integers(48)),
    Kind(pa.duration("ms"), integers(48)),
    Kind(pa.month_day_nano_interval(), st.tuples(NATURAL, NATURAL, integers(63))),
    Kind(pa.string(), TEXT),
    Kind(pa.large_string(), TEXT),
    Kind(pa.string_view(), TEXT),
    Kind(pa.binary(), BINARY),
    Kind(pa.large_binary(), BINARY),
    Kind(pa.binary_view(), BINARY),
    Kind(pa.binary(7), st.binary(min_size=7, max_size=7)),
    Kind(pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a", "b\0"])),
    Kind(pa.uuid(), st.binary(min_size=16, max_size=16)),
]


def nullable(kind: Kind) -> Values:
    return st.none() | kind.values


def in_order(fields: dict[str, Values]) -> Values:
    """Dictionaries whose repr depends on nothing but their content."""
    return st.tuples(*fields.values()).map(lambda values: dict(zip(fields, values, strict=True)))


def nested(children: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def lists(child: Kind) -> list[Kind]:
        values = st.lists(nullable(child), max_size=3)
        return [
            Kind(pa.list_(child.type), values),
            Kind(pa.large_list(child.type), values),
            Kind(pa.list_(child.type, 2), st.lists(nullable(child), min_size=2, max_size=2)),
            Kind(
                pa.map_(pa.string(), child.type),
                st.lists(st.tuples(st.sampled_from("abc"), nullable(child)), max_size=3),
            ),
        ]

    def struct(first: Kind, second: Kind) -> Kind:
        type_ = pa.struct({"first": first.type, "second": second.type})
        values = {"first": nullable(first), "second": nullable(second)}
        return Kind(type_, in_order(values))

    return children.flatmap(lambda child: st.sampled_from(lists(child))) | st.builds(
        struct, children, children
    )


# Arrow cannot build these inside of lists and structs from Python values.
FLAT_ONLY = (pa.float16(), pa.uuid())
KINDS = st.sampled_from(PLAIN) | nested(
    st.recursive(
        st.sampled_from([kind for kind in PLAIN if kind.type not in FLAT_ONLY]),
        nested,
        max_leaves=3,
    )
)


def build(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(type_, build(values, type_.storage_type))
    return pa.array(values, type_)


@dataclass(frozen=True)
class Rows:
    """Rows of Python values with the types of their columns."""

    types: tuple[pa.DataType, ...]
    rows: tuple[tuple[Any, ...], ...]

    def batch(self, order: Sequence[int] | None = None) -> pa.RecordBatch:
        rows = self.rows if order is None else [self.rows[place] for place in order]
        return batch(
            *(
                build([row[column] for row in rows], type_)
                for column, type_ in enumerate(self.types)
            )
        )

    def fingerprint(self) -> str:
        return of(self.batch())


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Kind], Rows]:
    columns = draw(st.lists(KINDS, min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*map(nullable, columns)), min_size=1, max_size=12))
    return columns, Rows(tuple(kind.type for kind in columns), tuple(rows))


@given(tables(), st.data())
def test_any_order_and_any_cut_give_the_same_fingerprint(
    table: tuple[list[Kind], Rows], data: st.DataObject
) -> None:
    _, rows = table
    count = len(rows.rows)
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    shuffled = rows.batch(order)
    slices = [
        shuffled.slice(start, stop - start) for start, stop in itertools.pairwise([0, *cuts, count])
    ]
    copies = [
        Rows(rows.types, tuple(rows.rows[place] for place in order[start:stop])).batch()
        for start, stop in itertools.pairwise([0, *cuts, count])
    ]
    assert of(*slices) == of(*copies) == rows.fingerprint()


@given(tables(), st.data())
def test_any_changed_value_gives_another_fingerprint(
    table: tuple[list[Kind], Rows], data: st.DataObject
) -> None:
    columns, rows = table
    row = data.draw(st.integers(0, len(rows.rows) - 1))
    column = data.draw(st.integers(0, len(columns) - 1))
    value = data.draw(nullable(columns[column]))
    assume(repr(value) != repr(rows.rows[row][column]))
    cells = [list(cells) for cells in rows.rows]
    cells[row][column] = value
    changed = Rows(rows.types, tuple(map(tuple, cells)))
    assert changed.fingerprint() != rows.fingerprint()


@given(tables(), st.data())
def test_a_row_more_or_less_gives_another_fingerprint(
    table: tuple[list[Kind], Rows], data: st.DataObject
) -> None:
    _, rows = table
    row = data.draw(st.integers(0, len(rows.rows) - 1))
    doubled = Rows(rows.types, (*rows.rows, rows.rows[row]))
    halved = Rows(rows.types, rows.rows[:row] + rows.rows[row + 1 :])
    assert len({doubled.fingerprint(), rows.fingerprint(), halved.fingerprint()}) == 3


FEW = [
    Kind(pa.int64(), st.sampled_from([0, 1, 2**32, 2**63 - 1])),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.binary(), st.sampled_from([b"", b"\0", b"\0\0\0\0", b"a", b"ab", b"b"])),
    Kind(pa.list_(pa.int8()), st.lists(st.none() | st.integers(0, 1), max_size=3)),
    Kind(
        pa.struct({"x": pa.int8(), "y": pa.string()}),
        in_order({"x": st.none() | st.just(0), "y": st.sampled_from(["", "a", None])}),
    ),
]


@given(st.lists(st.sampled_from(FEW), min_size=1, max_size=2), st.data())
@settings(max_examples=300)
def test_equal_exactly_when_the_same_rows_occur_equally_often(
    columns: list[Kind], data: st.DataObject
) -> None:
    types = tuple(kind.type for kind in columns)
    lists_of_rows = st.lists(st.tuples(*map(nullable, columns)), max_size=4).map(tuple)
    one, other = (Rows(types, data.draw(lists_of_rows)) for _ in range(2))
    same = Counter(map(repr, one.rows)) == Counter(map(repr, other.rows))
    assert (one.fingerprint() == other.fingerprint()) is same


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([strings("ab"), strings("c")], [strings("a"), strings("bc")], id="moved byte"),
        pytest.param([strings("a"), strings("b")], [strings("b"), strings("a")], id="swapped"),
        pytest.param(
            [strings("a", "b"), strings("c", "d")],
            [strings("a", "b"), strings("d", "c")],
            id="column reordered against another",
        ),
        pytest.param([strings("a", "a")], [strings("b", "b")], id="pairs cancel under xor"),
        pytest.param([strings("a", "a", "b")], [strings("a", "b", "b")], id="other multiplicity"),
        pytest.param([strings(None)], [strings("")], id="null or empty"),
        pytest.param([strings("a\0")], [strings("a")], id="trailing NUL"),
        pytest.param(
            [pa.array([None], pa.int64())], [pa.array([0], pa.int64())], id="null or zero"
        ),
        pytest.param([pa.array([0.0])], [pa.array([-0.0])], id="negative zero"),
        pytest.param([pa.array([1], pa.int32())], [pa.array([1], pa.int64())], id="other type"),
        pytest.param(
            [pa.array([1], pa.timestamp("ms"))], [pa.array([1], pa.timestamp("us"))], id="unit"
        ),
        pytest.param(
            [pa.array([Decimal("1.0")], pa.decimal128(9, 1))],
            [pa.array([Decimal("10")], pa.decimal128(9, 0))],
            id="scale",
        ),
        pytest.param([pa.array([[1, 2]])], [pa.array([[2, 1]])], id="order within a list"),
        pytest.param([pa.array([[1], [2, 3]])], [pa.array([[1, 2], [3]])], id="list boundary"),
        pytest.param([pa.array([[[1], []]])], [pa.array([[[], [1]]])], id="nested list boundary"),
        pytest.param([pa.array([{"x": None}])], [pa.array([None], pa.struct({"x": pa.null()}))]),
    ],
)
def test_told_apart(one: list[pa.Array], other: list[pa.Array]) -> None:
    assert of(batch(*one)) != of(batch(*other))


def test_names_of_columns_count() -> None:
    values = pa.array([1])
    one, other = (pa.record_batch({name: values}) for name in ("a", "b"))
    assert of(one) != of(other)


def test_nan_payloads_count_by_their_bits() -> None:
    quiet, other = (
        np.array([bits], np.uint64).view(np.float64) for bits in (0x7FF8 << 48, 0x7FF9 << 48)
    )
    assert of(batch(pa.array(quiet))) != of(batch(pa.array(other)))


@pytest.mark.parametrize(
    "encode",
    [
        lambda array: array.cast(pa.large_string()),
        lambda array: array.cast(pa.string_view()),
        lambda array: array.dictionary_encode(),
        lambda array: array.dictionary_encode(null_encoding="encode"),
        lambda array: pa.concat_arrays([strings("x", None), array, strings("y")]).slice(
            2, len(array)
        ),
    ],
)
def test_encodings_of_the_same_values_are_the_same(encode: Callable[[pa.Array], pa.Array]) -> None:
    array = strings("a", None, "", "a", "longer than eight bytes")
    encoded = encode(array)
    assert of(batch(encoded)) == of(batch(array))
    lists, encoded_lists = (
        pa.LargeListArray.from_arrays([0, 2, 5], values) for values in (array, encoded)
    )
    assert of(batch(encoded_lists)) == of(batch(lists))


def test_display_of_time_does_not_count() -> None:
    array = pa.array([1, 2], pa.timestamp("us", "UTC"))
    assert of(batch(array)) == of(batch(array.cast(pa.timestamp("us", "Europe/Zurich"))))


def buffer(*values: int, of_type: str) -> pa.Buffer:
    return pa.py_buffer(np.array(values, of_type).tobytes())


def under_a_null(junk: int) -> list[pa.Array]:
    """Columns of three rows, of which the second is null with that junk beneath."""
    valid = buffer(0b101, of_type="u1")
    offsets = buffer(0, 1, 1 + junk % 3, 3 + junk % 3, of_type="i4")
    child = pa.array([1, *[junk] * (junk % 3), 3, 4], pa.int64())
    members = pa.array([1, junk, 3], pa.int64())
    items = pa.array([1, 2, junk, junk, 3, 4], pa.int64())
    make = pa.Array.from_buffers
    return [
        make(pa.int64(), 3, [valid, buffer(1, junk, 3, of_type="i8")]),
        make(pa.int8(), 3, [valid, buffer(1, junk, 3, of_type="i1")]),
        make(pa.bool_(), 3, [valid, buffer(0b101 | (junk & 1) << 1, of_type="u1")]),
        make(pa.decimal128(9, 2), 3, [valid, buffer(1, 0, junk, junk, 3, 0, of_type="i8")]),
        make(pa.binary(), 3, [valid, offsets, pa.py_buffer(b"a" + b"j" * (junk % 3) + b"bc")]),
        make(pa.list_(pa.int64()), 3, [valid, offsets], children=[child]),
        make(pa.struct({"x": pa.int64()}), 3, [valid], children=[members]),
        make(pa.list_(pa.int64(), 2), 3, [valid], children=[items]),
    ]


def test_what_lies_under_a_null_does_not_count() -> None:
    for one, other in zip(under_a_null(3), under_a_null(5), strict=True):
        one.validate(full=True)
        assert of(batch(one)) == of(batch(other)), one.type


@given(st.lists(st.none() | st.integers(0, 9_000), max_size=20), st.randoms(use_true_random=False))
def test_the_way_to_cut_work_does_not_count(lengths: list[int | None], random: Any) -> None:
    values = [None if length is None else random.randbytes(length) for length in lengths]
    array = pa.array(values, pa.binary())
    lists = pa.ListArray.from_arrays([0, len(array) // 2, len(array)], array)
    whole = of(batch(array)), of(batch(lists))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_SLICE_ROWS", 3)
        patch.setattr(lanes, "_SLICE_BYTES", 100)
        assert (of(batch(array)), of(batch(lists))) == whole
    assert of(*(batch(array.slice(row, 1)) for row in range(len(array)))) == whole[0]


def test_values_of_one_width_and_of_many_go_the_same_way() -> None:
    values = [bytes([65 + number % 7]) * 100 for number in range(100)]
    mixed = [b"x" * length for length in (0, 1, 3, 4, 5, 99, 101, 3_000, 4_096, 4_097, 70_000)]
    one_width, many = (pa.array(part, pa.binary()) for part in (values, mixed))
    assert of(batch(one_width), batch(many)) == of(batch(pa.array(values + mixed, pa.binary())))


def test_no_two_small_differences_meet() -> None:
    """Every one- and two-bit change of a value of 40 bytes: the lanes of all rows differ."""
    bits = 8 * 40
    flips = [(one, two) for one in range(bits) for two in range(one, bits)]
    rows = np.zeros((len(flips), bits), np.uint8)
    for row, places in enumerate(flips):
        rows[row, list(places)] = 1
    cells = np.packbits(rows, axis=1)
    offsets = np.arange(len(cells) + 1, dtype=np.int32) * 40
    array = pa.Array.from_buffers(
        pa.binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells)]
    )
    for lane in np.hstack([*lanes.lanes_of_rows(batch(array))]):
        assert len(np.unique(lane)) == len(flips)


@pytest.mark.parametrize(
    "array",
    [
        pa.UnionArray.from_dense(
            pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
        ),
        pa.RunEndEncodedArray.from_arrays([1], [7]),
        pa.array([[1]], pa.list_view(pa.int64())),
    ],
)
@pytest.mark.parametrize("wrap", [False, True])
def test_a_type_without_fingerprint_is_refused_by_name(array: pa.Array, wrap: bool) -> None:
    column = pa.StructArray.from_arrays([array], ["inner"]) if wrap else array
    with pytest.raises(ConfigurationError, match=r"'a/b:c=d'") as raised:
        of(pa.record_batch({"a/b:c=d": column}))
    assert str(array.type) in str(raised.value)


def golden_batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "number": pa.array([1, None, -3], pa.int64()),
            "small": pa.array([1, None, -3], pa.int8()),
            "flag": pa.array([True, None, False]),
            "ratio": pa.array([0.5, None, -0.0]),
            "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
            "at": pa.array([1_700_000_000_000_000, None, 0], pa.timestamp("us", "UTC")),
            "text": pa.array(["é\0", None, ""]),
            "data": pa.array([b"x" * 100, None, b"y" * 5_000]),
            "code": pa.array([b"abcde", None, b"fghij"], pa.binary(5)),
            "list": pa.array([[1, None, 3], None, []], pa.list_(pa.int32())),
            "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": "z"}]),
            "nothing": pa.nulls(3),
        }
    )


GOLDEN: dict[str, str] = {
    "number": "1:3:31065f134bdf40d5cb80064854efe707",
    "small": "1:3:7ef716b8f6358d5cf5b26ceae4277aa6",
    "flag": "1:3:61c55668d7d4a1ae7bba8c31dd54e7bc",
    "ratio": "1:3:3ddb48dd97950b8a6bc854fc1e4335a6",
    "price": "1:3:d2444927d60216b1cf8b63b36f27a99c",
    "at": "1:3:7dedf83e68cf3c8467b57d1f58e74fc6",
    "text": "1:3:af27114755df349a46d4737157e806ef",
    "data": "1:3:4ab49e2e1d6c7f3a9e0cbae1768c8c84",
    "code": "1:3:f2551de7d423c8ad80592c5cd4d3f70c",
    "list": "1:3:fc054b63735ad9963983e90369f14553",
    "map": "1:3:391d63a29a62edd9a87d8283cd189603",
    "struct": "1:3:59f59e2546d3c53604c7584054dd806f",
    "nothing": "1:3:3aa2505e4c2642c6e1cf5c0376fe9ae8",
    "all": "1:3:129d95312c003da9f41dbaf70bcb34fe",
    "none": "1:0:00000000000000000000000000000000",
}


def test_golden_values_of_version_1() -> None:
    """A change here makes records of running queries unreadable: raise the version instead."""
    found = {name: of(golden_batch().select([name])) for name in golden_batch().schema.names}
    found["all"] = of(golden_batch())
    found["none"] = of()
    assert found == GOLDEN


def test_the_example_in_the_docstring_holds() -> None:
    assert doctest.testmod(fingerprint).failed == 0
