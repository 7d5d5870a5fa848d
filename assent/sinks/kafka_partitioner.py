"""Which partition a Kafka record goes to, for whole record batches at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from assent.protocol.errors import AssentError
from assent.sinks.kafka_bytes import Bytes

Int32s: TypeAlias = npt.NDArray[np.int32]
UserPartitioner: TypeAlias = Callable[[pa.RecordBatch, int], object]
"""From the columns key, value and topic, and the number of partitions, to one int per row."""

UNASSIGNED = -1
"""Stands in a column of partitions where no partition is asked for."""

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)


def murmur2(keys: Bytes) -> Int32s:
    """The hash by which Kafka's Java client places keys, of every key; of a null: anything."""
    lengths = keys.lengths
    words = lengths >> 2
    hashes = lengths.astype(np.uint32) ^ _SEED
    longest = int(words.max(initial=0))
    if longest:
        # By falling length, so that the rows that still have a word are always a prefix.
        order = np.argsort(-words, kind="stable") if int(words.min()) != longest else None
        starts = keys.starts if order is None else keys.starts[order]
        left = np.searchsorted(-(words if order is None else words[order]), -np.arange(longest))
        mixed = hashes if order is None else hashes[order]
        # Four bytes from any address on: a word for each byte of the data.
        every = np.ndarray((len(keys.data) - 3,), "<u4", keys.data, strides=(1,))
        for word in range(longest):
            # The first row without a word of this number ends the prefix.
            active = int(left[word])
            part = every[starts[:active] + 4 * word]
            part *= _MULTIPLIER
            part ^= part >> np.uint32(24)
            part *= _MULTIPLIER
            mixed[:active] *= _MULTIPLIER
            mixed[:active] ^= part
        if order is None:
            hashes = mixed
        else:
            hashes[order] = mixed
    _mix_tails(hashes, keys)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    return hashes.view(np.int32)


def _mix_tails(hashes: npt.NDArray[np.uint32], keys: Bytes) -> None:
    tails = keys.lengths & 3
    for byte in (2, 1, 0):
        rows = np.flatnonzero(tails > byte)
        if len(rows):
            at = keys.starts[rows] + (keys.lengths[rows] & ~3) + byte
            hashes[rows] ^= keys.data[at].astype(np.uint32) << np.uint32(8 * byte)
            if byte == 0:
                hashes[rows] *= _MULTIPLIER


@dataclass
class Partitioner:
    """Places records as Kafka's Java client does, so that mixed producers agree on keys.

    A partition that a row asks for wins; then the user's function, if there is one; then the
    hash of the key. Rows without a key go to one partition per batch, and to the next one with
    the next batch: large requests, and all partitions get their share. `turn` is where to begin;
    tasks should begin at different ones.
    """

    user: UserPartitioner | None = None
    turn: int = 0
    _turns: dict[str, int] = field(default_factory=dict, init=False)

    def place(
        self,
        topic: str,
        count: int,
        keys: pa.Array | None,
        values: pa.Array,
        asked: Int32s | None = None,
    ) -> Int32s:
        """The partition of every row, given the topic's number of partitions."""
        if asked is not None and not np.any(asked == UNASSIGNED):
            return asked
        if self.user is not None:
            placed = self._by_user(self.user, topic, count, keys, values)
        else:
            placed = self._by_key(topic, count, keys, len(values))
        return placed if asked is None else np.where(asked == UNASSIGNED, placed, asked)

    def _by_key(self, topic: str, count: int, keys: pa.Array | None, rows: int) -> Int32s:
        if keys is not None and keys.null_count == 0:
            return _positive_modulo(murmur2(Bytes.of(keys)), count)
        turn = self._turns.get(topic, self.turn)
        self._turns[topic] = turn + 1
        sticky = np.full(rows, turn % count, np.int32)
        if keys is None or keys.null_count == rows:
            return sticky
        there = keys.is_valid().to_numpy(zero_copy_only=False)
        return np.where(there, _positive_modulo(murmur2(Bytes.of(keys)), count), sticky)

    def _by_user(
        self,
        function: UserPartitioner,
        topic: str,
        count: int,
        keys: pa.Array | None,
        values: pa.Array,
    ) -> Int32s:
        rows = len(values)
        given = pa.nulls(rows, pa.binary()) if keys is None else keys
        topics = pa.repeat(pa.scalar(topic), rows)
        batch = pa.record_batch({"key": given, "value": values, "topic": topics})
        answer = function(batch, count)
        if isinstance(answer, (pa.Array, pa.ChunkedArray)):
            answer = answer.to_numpy(zero_copy_only=False)
        placed = np.asarray(answer)
        if placed.shape != (rows,) or placed.dtype.kind not in "iu":
            raise AssentError(
                f"the partitioner gave {placed.dtype} of shape {placed.shape} for {rows} rows of "
                f"topic {topic!r}; it has to give one integer from 0 to {count - 1} per row"
            )
        wrong = np.flatnonzero((placed < 0) | (placed >= count))
        if len(wrong):
            raise AssentError(
                f"the partitioner gave partition {placed[wrong[0]]} for a row of topic {topic!r}, "
                f"which has the partitions 0 to {count - 1}"
            )
        return placed.astype(np.int32, copy=False)


def _positive_modulo(hashes: Int32s, count: int) -> Int32s:
    return (hashes & np.int32(0x7FFFFFFF)) % np.int32(count)
