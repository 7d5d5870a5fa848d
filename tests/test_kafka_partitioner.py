from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError
from assent.sinks.kafka_bytes import Bytes
from assent.sinks.kafka_partitioner import Partitioner, murmur2

KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def reference(key: bytes) -> int:
    """The algorithm, one byte and one row at a time."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if tail := key[whole:]:
        value = (value ^ int.from_bytes(tail, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    value ^= value >> 15
    return value - (1 << 32) if value >> 31 else value


def hashes(array: pa.Array) -> list[int]:
    found: list[int] = murmur2(Bytes.of(array)).tolist()
    return found


def test_vectors_of_the_java_client() -> None:
    assert hashes(pa.array(list(KNOWN))) == list(KNOWN.values())
    assert [reference(key) for key in KNOWN] == list(KNOWN.values())


@pytest.mark.parametrize("longest", [0, 1, 3, 4, 5, 16, 300])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_random_keys_against_the_plain_algorithm(longest: int, kind: pa.DataType) -> None:
    source = random.Random(longest)
    keys = [source.randbytes(source.randint(0, longest)) for _ in range(500)]
    assert hashes(pa.array(keys, kind)) == [reference(key) for key in keys]


def test_keys_of_one_length_and_slices() -> None:
    keys = [f"key-{number:05d}".encode() for number in range(1000)]
    assert hashes(pa.array(keys)) == [reference(key) for key in keys]
    assert hashes(pa.array(keys).slice(7, 100)) == [reference(key) for key in keys[7:107]]
    assert hashes(pa.array([], pa.binary())) == []
    texts = ["", "ä", "日本語", "x" * 50]
    assert hashes(pa.array(texts)) == [reference(text.encode()) for text in texts]


def test_keys_decide() -> None:
    keys = [b"foobar", b"", b"21"]
    placed = Partitioner().place("t", 7, pa.array(keys), pa.array(keys))
    assert placed.dtype == np.int32
    assert placed.tolist() == [(reference(key) & 0x7FFFFFFF) % 7 for key in keys]


def test_rows_without_key_share_a_partition_which_rotates_with_each_batch() -> None:
    partitioner = Partitioner(turn=2)
    values = pa.array([b"x"] * 3)
    placed = [partitioner.place("t", 3, None, values).tolist() for _ in range(4)]
    assert placed == [[2] * 3, [0] * 3, [1] * 3, [2] * 3]
    nulls = pa.nulls(3, pa.string())
    assert partitioner.place("other", 3, nulls, values).tolist() == [2] * 3


def test_some_keys_null() -> None:
    keys = pa.array(["foobar", None, "21", None])
    placed = Partitioner(turn=4).place("t", 5, keys, keys)
    assert placed.tolist() == [
        (reference(b"foobar") & 0x7FFFFFFF) % 5,
        4,
        (reference(b"21") & 0x7FFFFFFF) % 5,
        4,
    ]


def test_bytes_beneath_a_null_do_not_matter() -> None:
    full = pa.array(["abc", "hidden", "21"])
    validity = pa.py_buffer(bytes([0b101]))
    keys = pa.Array.from_buffers(pa.string(), 3, [validity, *full.buffers()[1:]])
    assert keys.to_pylist() == ["abc", None, "21"]
    there = Bytes.of(keys)
    assert there.lengths.tolist() == [3, 0, 2]
    assert [there.at(row) for row in range(3)] == [b"abc", None, b"21"]
    assert there.addresses[1] == 0


def test_an_asked_partition_wins() -> None:
    asked = np.array([9, -1, 0], np.int32)
    keys = pa.array(["a", "foobar", "b"])
    placed = Partitioner().place("t", 10, keys, keys, asked)
    assert placed.tolist() == [9, (reference(b"foobar") & 0x7FFFFFFF) % 10, 0]


def test_a_partitioner_of_the_user() -> None:
    seen: list[object] = []

    def by_length(batch: pa.RecordBatch, count: int) -> object:
        seen.append((batch.schema.names, batch.column("topic").to_pylist(), count))
        return pa.array([len(value) % count for value in batch.column("value").to_pylist()])

    values = pa.array([b"x", b"xx", b"xxx", b"xxxx"])
    asked = np.array([-1, -1, -1, 0], np.int32)
    assert Partitioner(by_length).place("t", 2, None, values, asked).tolist() == [1, 0, 1, 0]
    assert seen == [(["key", "value", "topic"], ["t"] * 4, 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0], "one integer from 0 to 1 per row"),
        ([0.5, 0.5], "one integer from 0 to 1 per row"),
        ([0, 2], "partition 2 for a row of topic 't'"),
        ([0, -1], "partition -1"),
    ],
)
def test_a_partitioner_that_answers_nonsense(answer: object, message: str) -> None:
    values = pa.array([b"x", b"y"])
    with pytest.raises(AssentError, match=message):
        Partitioner(lambda batch, count: answer).place("t", 2, None, values)
