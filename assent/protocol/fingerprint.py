"""The fingerprint of all rows that one task wrote, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from assent.protocol.lanes import STEP, lanes_of_rows, mix

if TYPE_CHECKING:
    import pyarrow as pa

FINGERPRINT_VERSION = 1


class Fingerprint:
    """A digest of a multiset of rows.

    Two fingerprints are equal when the same rows were taken in, each as often, in any order and
    however cut into batches. They differ, but for a chance of about 2^-64, when a value, a null,
    the number of times a row occurs, the order or names of columns, the kind of a column or the
    order within a list differs. Encodings that mean the same value are the same: string, large
    string and string view; a dictionary and its plain form; an extension type and its storage;
    a slice and its copy; a time zone, which is only for display. Floats count by their bits, and
    the entries of a map by their order: a replay gives the same ones.

    How version 1 works: a row is a vector of 32-bit pieces (null flags, lengths, data). Each of
    two lanes is the sum, modulo 2^64, of the pieces times random 64-bit keys, one for each piece
    of each column. For two different rows that were not made with the keys in view, lanes are
    equal with a chance of at most 2^-33 each. Both lanes then go through a bijection that is far
    from linear, and are summed over all rows; sums, unlike exclusive or, count repeated rows.
    Buffers are read as they lie in memory, which is the same everywhere on little-endian machines.

    Not against an adversary: somebody who chooses rows by the keys can make two tasks look alike.

    >>> import pyarrow as pa
    >>> fingerprint = Fingerprint()
    >>> fingerprint.update(pa.record_batch({"city": ["Bern", None]}))
    >>> str(fingerprint)
    '1:2:308931d29ac8841ba48308739e0cba63'
    """

    def __init__(self) -> None:
        self._rows = 0
        self._sums = [0, 0]

    def update(self, batch: pa.RecordBatch) -> None:
        """Take in the rows of a batch. A type that has no fingerprint is a ConfigurationError."""
        rows, *sums = sums_of_rows(batch)
        self._rows += rows
        self._sums = [(one + more) % 2**64 for one, more in zip(self._sums, sums, strict=True)]

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take in the rows of all batches as they go by."""
        for batch in batches:
            self.update(batch)
            yield batch

    def __str__(self) -> str:
        """Version of the algorithm, number of rows, and 32 hexadecimal digits."""
        return f"{FINGERPRINT_VERSION}:{self._rows}:{self._sums[0]:016x}{self._sums[1]:016x}"


def sums_of_rows(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """The number of rows, and the sums of both mixed lanes over them."""
    rows, sums = 0, [0, 0]
    for lanes in lanes_of_rows(batch):
        turned = lanes[1] << np.uint64(32) | lanes[1] >> np.uint64(32)
        first = mix(turned + lanes[0] + STEP)
        second = mix(first + lanes[1])
        rows += len(first)
        sums = [sums[0] + int(first.sum()), sums[1] + int(second.sum())]
    return rows, sums[0], sums[1]


NO_ROWS = str(Fingerprint())
