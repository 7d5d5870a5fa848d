"""The lanes of a row: two words that differ when rows differ, computed without a loop over rows.

Part of the algorithm behind `fingerprint`, which says what they are; whatever changes a lane here
changes the fingerprint and needs a new version of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b, shake_128
from math import prod
from threading import local
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from assent.protocol.errors import ConfigurationError

Words: TypeAlias = npt.NDArray[np.uint64]
Lengths: TypeAlias = npt.NDArray[np.int64]
Cells: TypeAlias = npt.NDArray[np.uint8]

_SLICE_ROWS = 32_768  # what is in flight at once: small enough for the cache, and bounds memory
_SLICE_BYTES = 131_072
_LONG_VALUE = 4_096  # longer values enter by their digest; part of the algorithm, not a tuning knob
_NARROW = 32  # up to here it is faster to go word by word than value by value, but for one piece
STEP = np.uint64(0x9E3779B97F4A7C15)
_scratch = local()


def lanes_of_rows(batch: pa.RecordBatch) -> Iterator[Words]:
    """Two 64-bit words for every row, as arrays of two rows, a bounded number of rows at a time."""
    for start in range(0, batch.num_rows, _SLICE_ROWS):
        part = batch.slice(start, _SLICE_ROWS)
        lanes = np.zeros((2, part.num_rows), np.uint64)
        for position, name in enumerate(batch.schema.names):
            lanes += _lanes(part.column(position), _child("", position, name))
        yield lanes


def _child(path: str, position: int, name: str) -> str:
    # The length keeps apart names that contain the separators.
    return f"{path}/{position}:{len(name)}:{name}"


@lru_cache(maxsize=1_024)
def _key_block(path: str, pieces: int) -> Words:
    # An extendable-output function: the first keys do not depend on how many are asked for.
    stream = np.frombuffer(shake_128(path.encode()).digest(16 * pieces), np.uint64)
    return np.ascontiguousarray(stream.reshape(pieces, 2).T)


def _keys(path: str, pieces: int) -> Words:
    """Random keys for the two lanes: the first is for null, the second for the length."""
    return _key_block(path, max(8, 1 << (pieces - 1).bit_length()))[:, :pieces]


def mix(words: Words) -> Words:
    """A bijection of 64-bit words in which every bit of the input moves every bit of the output."""
    words = words ^ words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _lanes(array: pa.Array, path: str) -> Words:
    """The two lanes of every value: what a null hides does not count."""
    array = _plain(array)
    kind = array.type
    path = f"{path}={_name(kind) or _refuse(kind, path)}"
    null_key = _keys(path, 1)
    if kinds.is_null(kind):
        return np.repeat(null_key, len(array), axis=1)
    if kinds.is_struct(kind):
        lanes = np.zeros((2, len(array)), np.uint64)
        for position in range(kind.num_fields):
            name = kind.field(position).name
            lanes += _lanes(array.field(position), _child(path, position, name))
    elif _is_list(kind):
        lanes = _list_lanes(array, path)
    elif _is_text(kind) or _is_bytes(kind):
        lanes = _variable_lanes(array, path)
    else:
        lanes = _fixed_lanes(array, path)
    if array.null_count:
        valid = _bits(array.buffers()[0], array.offset, len(array))
        lanes *= valid
        lanes += null_key * (valid ^ np.uint64(1))
    return lanes


def _plain(array: pa.Array) -> pa.Array:
    """The same values without an encoding that adds nothing to their meaning."""
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if kinds.is_string_view(array.type):
        return array.cast(pa.large_string())
    if kinds.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    if not kinds.is_dictionary(array.type):
        return array
    # Not pyarrow's own decoder: it fails when a null struct hides indices that lead nowhere.
    count = len(array.dictionary)
    if not count:
        return _plain(pa.nulls(len(array), array.type.value_type))
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False).clip(0, count - 1)
    nulls = array.indices.is_null().to_numpy(zero_copy_only=False)
    return _plain(array.dictionary.take(pa.array(indices, mask=nulls)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_map)
    return any(test(kind) for test in lists)


_KINDS = (
    (kinds.is_null, "null"),
    (kinds.is_struct, "struct"),
    (kinds.is_map, "map"),
    (_is_list, "list"),
    (_is_text, "string"),
    (_is_bytes, "binary"),
    (kinds.is_fixed_size_binary, "fixed{0.byte_width}"),
    (kinds.is_boolean, "bool"),
    (kinds.is_signed_integer, "int{0.bit_width}"),
    (kinds.is_unsigned_integer, "uint{0.bit_width}"),
    (kinds.is_floating, "float{0.bit_width}"),
    (kinds.is_decimal, "decimal{0.bit_width}.{0.scale}"),
    (kinds.is_date, "date{0.bit_width}"),
    (kinds.is_time, "time{0.bit_width}.{0.unit}"),
    (kinds.is_timestamp, "timestamp.{0.unit}"),
    (kinds.is_duration, "duration.{0.unit}"),
    (kinds.is_interval, "interval"),
)


@lru_cache(maxsize=1_024)
def _name(kind: pa.DataType) -> str | None:
    """A name for what the bits mean, if there is one: our own, for those of pyarrow may change."""
    return next((name.format(kind) for test, name in _KINDS if test(kind)), None)


def _refuse(kind: pa.DataType, path: str) -> NoReturn:
    _, length, rest = path.split(":", 2)
    raise ConfigurationError(
        f"column {rest[: int(length)]!r} contains the type {kind}, which has no fingerprint, so "
        "that a replay could not be checked; cast it to a plain type before it is written"
    )


def _bits(buffer: pa.Buffer, offset: int, count: int) -> Words:
    begin = offset // 8
    packed = np.frombuffer(buffer, np.uint8)[begin : (offset + count + 7) // 8]
    bits = np.unpackbits(packed, bitorder="little")[offset - 8 * begin :]
    return bits[:count].astype(np.uint64)


def _bytes(buffer: pa.Buffer | None) -> Cells:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _room(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array to be filled, in memory of this thread that is used again and again.

    Pages fresh from the operating system cost more than all that is done to them here.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory: npt.NDArray[np.uint8] | None = getattr(_scratch, name, None)
    if memory is None or memory.size < size:
        memory = np.empty(size, np.uint8)
        setattr(_scratch, name, memory)
    return memory[:size].view(dtype).reshape(shape)


def _dot(pieces: npt.NDArray[np.uint32], keys: Words) -> Words:
    """Sums of pieces times keys, for both lanes."""
    wide = _room("wide", pieces.shape, np.uint64)
    np.copyto(wide, pieces)
    # Faster than matmul, which has no library behind it for whole numbers.
    lanes: Words = np.einsum("ij,kj->ki", wide, keys)
    return lanes


def _matrix_lanes(cells: Cells, path: str) -> Words:
    """The lanes of values that all have one width."""
    count, width = cells.shape
    if 0 < width <= _NARROW and width != 4:
        return _narrow_lanes(cells, path)
    pieces = (width + 3) // 4
    keys = _keys(path, 2 + pieces)[:, 2:]
    lanes = np.zeros((2, count), np.uint64)
    step = max(1, _SLICE_BYTES // max(1, width))
    for start in range(0, count if width else 0, step):
        part = cells[start : start + step]
        lanes[:, start : start + step] = _dot(_widened(part, 4 * pieces).view(np.uint32), keys)
    return lanes


def _widened(cells: Cells, width: int) -> Cells:
    """The same values, with zeros behind them up to a width."""
    count, narrow = cells.shape
    if narrow == width:
        return cells
    wide = _room("widened", (count, width), np.uint8)
    wide[:, :narrow] = cells
    wide[:, narrow:] = 0
    return wide


def _narrow_lanes(cells: Cells, path: str) -> Words:
    """The same for values of few words: word by word, each for all values at once."""
    words = (cells.shape[1] + 7) // 8
    keys = _keys(path, 2 + 2 * words)[:, 2:]
    lanes = _word_lanes(_column(cells, 0), keys)
    for place in range(1, words):
        lanes += _word_lanes(_column(cells, place), keys[:, 2 * place :])
    return lanes


def _column(cells: Cells, place: int) -> Words:
    """The words at one place of all values, side by side, with zeros behind the values."""
    count, width = cells.shape
    if width < 8:
        return _widened(cells, 8).view(np.uint64)[:, 0]
    # The last one is taken from the end of the value, so that nothing is read beyond it.
    begin = min(8 * place, width - 8)
    words: Words = _room("column", (count,), np.uint64)
    np.copyto(words, cells[:, begin : begin + 8].view(np.uint64)[:, 0])
    if begin < 8 * place:
        words >>= np.uint64(8 * (8 * place - begin))
    return words


def _word_lanes(words: Words, keys: Words) -> Words:
    """The lanes of words: two pieces each."""
    low, high = keys[:, 0:1], keys[:, 1:2]
    lanes: Words = words * low
    # The upper piece has gone in with the lower one, and with its key: it is put right here.
    lanes += (words >> np.uint64(32)) * (high - (low << np.uint64(32)))
    return lanes


def _fixed_lanes(array: pa.Array, path: str) -> Words:
    count, buffer = len(array), array.buffers()[1]
    if kinds.is_boolean(array.type):
        return _keys(path, 3)[:, 2:] * _bits(buffer, array.offset, count)
    width: int = array.type.byte_width
    cells = _bytes(buffer)[array.offset * width : (array.offset + count) * width]
    if width in (1, 2, 4):
        return _keys(path, 3)[:, 2:] * cells.view(f"u{width}").astype(np.uint64)
    if width == 8:
        return _word_lanes(cells.view(np.uint64), _keys(path, 4)[:, 2:])
    return _matrix_lanes(cells.reshape(count, width), path)


def _list_lanes(array: pa.Array, path: str) -> Words:
    """Elements mixed with their places, and summed: a list is then a value of two words."""
    count = len(array)
    if kinds.is_fixed_size_list(array.type):
        places = np.arange(array.offset, array.offset + count + 1, dtype=np.int64)
        offsets = places * array.type.list_size
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    within = np.arange(1, len(values) + 1) - np.repeat(offsets[:-1], lengths)
    totals = np.zeros((2, len(values) + 1), np.uint64)
    for start in range(0, len(values), _SLICE_ROWS):
        part = values.slice(start, _SLICE_ROWS)
        stop = start + len(part)
        shift = within[start:stop].astype(np.uint64) * STEP
        totals[:, start + 1 : stop + 1] = mix(_lanes(part, f"{path}/item") + shift)
    np.cumsum(totals, axis=1, out=totals)
    sums = np.ascontiguousarray((totals[:, offsets[1:]] - totals[:, offsets[:-1]]).T)
    lanes: Words = _keys(path, 2)[:, 1:] * lengths.astype(np.uint64)
    lanes += _matrix_lanes(sums.view(np.uint8), path)
    return lanes


def _variable_lanes(array: pa.Array, path: str) -> Words:
    count = len(array)
    _, offset_buffer, data_buffer = array.buffers()
    large = kinds.is_large_string(array.type) or kinds.is_large_binary(array.type)
    stored = np.frombuffer(offset_buffer, np.int64 if large else np.int32)
    offsets: Lengths = stored[array.offset : array.offset + count + 1].astype(np.int64)
    data, lengths = _bytes(data_buffer), np.diff(offsets)
    lanes: Words = _keys(path, 2)[:, 1:] * lengths.astype(np.uint64)
    widest = int(lengths.max(initial=0))
    if widest <= _LONG_VALUE and widest == lengths.min(initial=widest):
        cells = data[offsets[0] : offsets[-1]].reshape(count, widest)
        return lanes + _matrix_lanes(cells, path)
    long = np.flatnonzero(lengths > _LONG_VALUE)
    if len(long):
        values = (data[offsets[row] : offsets[row + 1]].data for row in long)
        digests = b"".join(blake2b(value, digest_size=16).digest() for value in values)
        lanes[:, long] += _matrix_lanes(np.frombuffer(digests, np.uint8).reshape(-1, 16), path)
        lengths[long] = 0
    for rows in _runs(lengths):
        lanes[:, rows] += _matrix_lanes(_padded(data, offsets[:-1][rows], lengths[rows]), path)
    return lanes


def _runs(lengths: Lengths) -> Iterator[slice | npt.NDArray[np.intp]]:
    """Rows to be padded to one width: neighbours, unless that would be mostly padding."""
    upper = int(lengths.max())
    if upper * len(lengths) <= 2 * int(lengths.sum()) + 32 * len(lengths):
        step = max(1, _SLICE_BYTES // max(1, upper))
        yield from (slice(start, start + step) for start in range(0, len(lengths), step))
        return
    while upper:
        rows = np.flatnonzero((lengths > upper // 4) & (lengths <= upper))
        step = max(1, _SLICE_BYTES // upper)
        yield from (rows[start : start + step] for start in range(0, len(rows), step))
        upper //= 4


def _padded(data: Cells, begins: Lengths, lengths: Lengths) -> Cells:
    """The bytes of every row, in whole pieces, with zeros behind them (they add nothing)."""
    width = (int(lengths.max()) + 3) // 4 * 4
    # Whole cells are read. Those of the last rows would reach past the buffer: they come from
    # a copy of its end that has room behind it.
    last = len(data) - width
    early = int(np.searchsorted(begins, last, "right"))
    found = _gather(data, begins[:early], width)
    if early < len(begins):
        end = data[max(0, last) :]
        tail = np.zeros(2 * width, np.uint8)
        tail[: len(end)] = end
        found = np.concatenate((found, _gather(tail, begins[early:] - max(0, last), width)))
    # On this ruler the mask for a length is the cell that begins that many bytes before the middle.
    ruler = np.repeat(np.array([255, 0], np.uint8), width)
    found &= _gather(ruler, width - lengths, width)
    return found


def _gather(data: Cells, begins: Lengths, width: int) -> Cells:
    if not len(begins) or not width:
        return np.zeros((len(begins), width), np.uint8)
    # A cell of that width begins at every byte, so that one step copies a whole value.
    cells: npt.NDArray[np.void] = np.ndarray(
        (len(data) - width + 1,), f"V{width}", buffer=data, strides=(1,)
    )
    return cells[begins].view(np.uint8).reshape(len(begins), width)
