"""Rows in the binary form of COPY, made of whole Arrow columns: there is no loop over rows.

A row is the number of its columns, and for each of them a length and so many bytes, all in network
byte order. A null has length -1. Neighbouring columns of one width become one numpy array of
records; what lies between texts and the like is put together by Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError
from assent.sinks.sql_types import is_binary, is_list, is_text

Values: TypeAlias = npt.NDArray[Any]

BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"

_types = pa.types
_LARGEST = 2**30 - 1  # of a value, for the server; and a length never wraps
_COUNT, _LENGTH, _NUMBER = np.dtype(">i2"), np.dtype(">i4"), np.dtype(">u4")
_NO_BYTES = pa.scalar(b"", pa.large_binary())
# The server counts days and microseconds from the year 2000, Arrow from 1970.
EPOCH_DAYS = 10_957
EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400_000_000
_INTERVAL = np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
_GROUP = 10_000  # a digit of the server's numbers
_NEGATIVE = 0x4000


@dataclass(frozen=True)
class Cells:
    """The values of a column, as the server reads them."""

    lengths: int | Values
    """In bytes: of all of them, or of each. That of a null is -1."""
    values: Values | pa.LargeBinaryArray
    """Of one width, in any byte order; or each of its own, nothing for a null."""


def rows(columns: Sequence[Cells], count: int) -> memoryview:
    """So many rows of these columns, for the server to read between `BEGIN` and `END`."""
    joined = _join(columns, count, [(_COUNT, len(columns))])
    offsets = np.frombuffer(joined.buffers()[1], np.int64)
    return memoryview(joined.buffers()[2])[offsets[0] : offsets[count]]


def cells(array: pa.Array, element: int | None = None) -> Cells:
    """The values of an array whose type is exactly that of the server's column.

    Of a list, `element` is the number of the type of its elements in the server's catalogue.
    """
    if is_list(array.type):
        assert element is not None
        return _lists(array, element)
    if is_text(array.type) or is_binary(array.type):
        return _ragged(array.cast(pa.large_binary()))
    present = array.drop_null() if array.null_count else array
    values = _fixed(present)
    width = values.dtype.itemsize
    if not array.null_count:
        return Cells(width, values)
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    lengths = np.where(valid, width, -1)
    return Cells(lengths, _binary(values.astype(_sent(values)), width * np.cumsum(valid)))


def _sent(values: Values) -> np.dtype[Any]:
    """The type of values as they are sent: in network byte order."""
    return values.dtype.newbyteorder(">")


def _join(
    columns: Sequence[Cells], count: int, record: list[tuple[np.dtype[Any], int | Values]]
) -> pa.LargeBinaryArray:
    """For every row: what the record has, then each column's length and value."""
    parts = []
    for column in columns:
        record.append((_LENGTH, column.lengths))
        if isinstance(column.values, np.ndarray):
            record.append((_sent(column.values), column.values))
        else:
            parts += [_records(record, count), column.values]
            record = []
    if record:
        parts.append(_records(record, count))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NO_BYTES)


def _records(
    fields: Sequence[tuple[np.dtype[Any], int | Values]], count: int
) -> pa.LargeBinaryArray:
    """The fields of every row, side by side."""
    kind = np.dtype([(f"f{index}", one) for index, (one, _) in enumerate(fields)])
    pattern = np.zeros((), kind)
    varying = {}
    for name, (_, values) in zip(kind.names or (), fields, strict=True):
        if isinstance(values, int):
            pattern[name] = values
        else:
            varying[name] = values
    # What is the same in all rows is written at once.
    records = np.full(count, pattern.view(np.dtype((np.void, kind.itemsize)))).view(kind)
    for name, values in varying.items():
        records[name] = values  # swaps bytes where that is needed
    width = kind.itemsize
    return _binary(records, np.arange(width, width * count + 1, width))


def _binary(values: Values, ends: Values) -> pa.LargeBinaryArray:
    """Bytes that lie one after the other, cut at these places."""
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.view(np.uint8))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)


def _ragged(array: pa.LargeBinaryArray) -> Cells:
    lengths = pc.binary_length(array).fill_null(-1).to_numpy()
    if lengths.max(initial=0) > _LARGEST:
        raise AssentError(
            f"a value has {lengths.max():,} bytes, and PostgreSQL takes {_LARGEST:,} at most"
        )
    if array.null_count:
        return Cells(lengths, array.fill_null(b""))  # Arrow leaves open what lies behind a null
    width = int(lengths.max(initial=0))
    if not width or width != lengths.min():
        return Cells(lengths, array)
    # All of one width: they need not be put together one by one.
    begin = int(np.frombuffer(array.buffers()[1], np.int64)[array.offset])
    data = np.frombuffer(array.buffers()[2], np.uint8)[begin : begin + width * len(array)]
    return Cells(width, data.view(np.dtype((np.void, width))))


def _lists(array: pa.Array, element: int) -> Cells:
    """One dimension, if there are elements at all: its size, its lower bound, the elements."""
    sizes = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    elements = array.flatten()  # without those that a null hides
    stops = np.cumsum(sizes)
    inner = _join([cells(elements)], len(elements), [])
    offsets = np.frombuffer(inner.buffers()[1], np.int64)
    contents = _binary(np.frombuffer(inner.buffers()[2], np.uint8), offsets[stops])
    nulls = np.cumsum(pc.is_null(elements).to_numpy(zero_copy_only=False))
    nulls = np.concatenate(([0], nulls))
    with_nulls = nulls[stops] > nulls[stops - sizes]
    filled = sizes > 0
    head = [(_LENGTH, filled), (_LENGTH, with_nulls), (_NUMBER, element)]
    dimensions = np.empty(int(filled.sum()), [("size", _LENGTH), ("lower", _LENGTH)])
    dimensions["size"], dimensions["lower"] = sizes[filled], 1
    shapes = _binary(dimensions, dimensions.dtype.itemsize * np.cumsum(filled))
    joined = pc.binary_join_element_wise(_records(head, len(array)), shapes, contents, _NO_BYTES)
    absent = pa.scalar(None, pa.large_binary())
    return _ragged(pc.if_else(array.is_valid(), joined, absent) if array.null_count else joined)


def _fixed(array: pa.Array) -> Values:
    """The values of an array without nulls, whose type has one width."""
    kind = array.type
    if _types.is_decimal(kind):
        return _numbers(array)
    if _types.is_duration(kind):
        intervals = np.zeros(len(array), _INTERVAL)
        intervals["microseconds"] = array.view(pa.int64()).to_numpy()
        return intervals
    values: Values
    if _types.is_boolean(kind):
        values = array.cast(pa.uint8()).to_numpy()
    elif _types.is_date32(kind):
        values = array.view(pa.int32()).to_numpy() - np.int32(EPOCH_DAYS)
    elif _types.is_timestamp(kind):
        values = array.view(pa.int64()).to_numpy() - np.int64(EPOCH_MICROSECONDS)
    elif _types.is_time(kind):
        values = array.view(pa.int64()).to_numpy()
    else:
        values = array.to_numpy()
    return values


def _numbers(array: pa.Array) -> Values:
    """Decimals: number of digits, weight of the first, sign, scale, and digits of base 10,000.

    All have as many digits as the type may need; the server strips zeros at either end.
    """
    kind = array.type
    # So many zeros behind it make the last group a whole one.
    zeros = -kind.scale % 4
    groups = -(-(kind.precision + zeros) // 4)
    negative, limbs = _magnitudes(array)
    limbs = _times(limbs, 10**zeros)
    digits = np.zeros((len(array), groups), np.int16)
    for column in reversed(range(groups)):
        digits[:, column] = _divide(limbs, _GROUP)
    if any(limb.any() for limb in limbs):
        raise AssentError(f"a decimal has more digits than its type, {kind}, may have")
    weight = groups - 1 - (kind.scale + zeros) // 4
    numbers = np.empty(len(array), [("head", _COUNT, 4), ("digits", _COUNT, groups)])
    numbers["head"] = (groups, weight, 0, max(0, kind.scale))
    numbers["head"][:, 2] = np.where(negative, _NEGATIVE, 0)
    numbers["digits"] = digits
    return numbers


def _magnitudes(array: pa.Array) -> tuple[Values, list[Values]]:
    """Which values are negative; and, without the sign, pieces of 32 bits, the lowest first."""
    width = array.type.byte_width // 4
    stored = np.frombuffer(array.buffers()[1] or b"", np.uint32)
    stored = stored[array.offset * width : (array.offset + len(array)) * width]
    pieces = stored.reshape(len(array), width).T.astype(np.uint64)
    negative = pieces[-1] >> np.uint64(31) == 1
    flip, carry = np.where(negative, np.uint64(2**32 - 1), np.uint64(0)), negative.astype(np.uint64)
    limbs = []
    for piece in pieces:
        total = (piece ^ flip) + carry
        limbs.append(total & np.uint64(2**32 - 1))
        carry = total >> np.uint64(32)
    return negative, limbs


def _times(limbs: Sequence[Values], factor: int) -> list[Values]:
    carry: Values = np.zeros_like(limbs[0])
    products = []
    for limb in limbs:
        total = limb * np.uint64(factor) + carry
        products.append(total & np.uint64(2**32 - 1))
        carry = total >> np.uint64(32)
    return [*products, carry]


def _divide(limbs: list[Values], divisor: int) -> Values:
    """Divide in place, and give what remains."""
    rest: Values = np.zeros_like(limbs[0])
    for place in reversed(range(len(limbs))):
        total = rest << np.uint64(32) | limbs[place]
        limbs[place], rest = np.divmod(total, np.uint64(divisor))
    return rest
