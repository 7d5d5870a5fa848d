"""What the fingerprint costs: `python -m bench.fingerprint [--quick]`.

Every shape is taken in as batches of 10,000 rows, as Spark hands them over, several times. What
is measured is processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from assent.protocol.fingerprint import Fingerprint
from bench import command
from bench.result import Measure, Result

BATCH_ROWS = 10_000
SEED = 20_240_601
FAIRNESS = "Nothing is compared. Processor time of this process alone."
SIZES = (
    command.Size("rows", 1_000_000, 20_000, "rows of each shape"),
    command.Size("repeat", 9, 2, "runs of each"),
)


def binary(random: np.random.Generator, lengths: np.ndarray) -> pa.Array:
    """Random bytes of those lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(random.bytes(int(offsets[-1])))
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), data])


def mixed(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    """Five columns as in a table of orders, with nulls in two of them."""
    return pa.record_batch(
        {
            "id": random.integers(0, 2**62, rows),
            "customer": pa.array(
                [f"customer-{number}" for number in random.integers(0, 10**6, rows)]
            ),
            "price": pa.array(random.random(rows), mask=random.random(rows) < 0.1),
            "paid": pa.array(random.random(rows) < 0.5, mask=random.random(rows) < 0.1),
            "at": pa.array(random.integers(0, 2**50, rows), pa.timestamp("us", "UTC")),
        }
    )


def lists(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    offsets = np.arange(rows + 1, dtype=np.int32) * 5
    values = pa.array(random.integers(0, 2**62, 5 * rows))
    return pa.record_batch({"values": pa.ListArray.from_arrays(offsets, values)})


Shape = Callable[[np.random.Generator, int], pa.RecordBatch]
SHAPES: dict[str, Shape] = {
    "int64": lambda random, rows: pa.record_batch({"value": random.integers(0, 2**62, rows)}),
    "binary, 100 bytes": lambda random, rows: pa.record_batch(
        {"value": binary(random, np.full(rows, 100))}
    ),
    "binary, 60 to 140 bytes": lambda random, rows: pa.record_batch(
        {"value": binary(random, random.integers(60, 141, rows))}
    ),
    "binary, 0 to 20 bytes": lambda random, rows: pa.record_batch(
        {"value": binary(random, random.integers(0, 21, rows))}
    ),
    "binary, 1 to 4,000 bytes, skewed": lambda random, rows: pa.record_batch(
        {"value": binary(random, (4_000 ** random.random(rows)).astype(np.int64))}
    ),
    "binary, 10,000 bytes": lambda random, rows: pa.record_batch(
        {"value": binary(random, np.full(rows, 10_000))}
    ),
    "five mixed columns": mixed,
    "list of five int64": lists,
}


def nanoseconds_per_row(shape: Shape, rows: int, repeat: int) -> list[float]:
    batch = shape(np.random.default_rng(SEED), BATCH_ROWS)
    batches = -(-rows // BATCH_ROWS)
    found = []
    for _ in range(repeat):
        fingerprint = Fingerprint()
        start = time.process_time_ns()
        for _ in range(batches):
            fingerprint.update(batch)
        found.append((time.process_time_ns() - start) / (batches * BATCH_ROWS))
    return found


def measure(options: argparse.Namespace) -> Result:
    measures = []
    for name, shape in SHAPES.items():
        # A hundredth of the rows where a row is a hundred times as large.
        rows = options.rows // 100 if "10,000" in name else options.rows
        samples = nanoseconds_per_row(shape, max(1, rows), options.repeat)
        measures.append(Measure.of("per row", name, "ns", samples))
    return Result("fingerprint", "The fingerprint of rows", FAIRNESS, {}, tuple(measures))


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
