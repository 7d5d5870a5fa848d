"""What the fingerprint costs: `python -m bench.fingerprint [--rows N] [--json]`.

Every shape is taken in as batches of 10,000 rows, as Spark hands them over, several times. What
is printed is processor time, of the best run: whatever else ran can only have made it longer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from assent.protocol.fingerprint import Fingerprint

BATCH_ROWS = 10_000
SEED = 20_240_601


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


def seconds_per_row(shape: Shape, rows: int, repeat: int) -> float:
    batch = shape(np.random.default_rng(SEED), BATCH_ROWS)
    best = float("inf")
    for _ in range(repeat):
        fingerprint = Fingerprint()
        start = time.process_time()
        for _ in range(0, rows, BATCH_ROWS):
            fingerprint.update(batch)
        best = min(best, time.process_time() - start)
    return best / (-(-rows // BATCH_ROWS) * BATCH_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the fingerprint of rows.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each shape")
    parser.add_argument("--repeat", type=int, default=5, help="runs, of which the best counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.rows < 1 or options.repeat < 1:
        parser.error("--rows and --repeat must be at least 1")
    results = {}
    for name, shape in SHAPES.items():
        # A hundredth of the rows where a row is a hundred times as large.
        rows = options.rows // 100 if "10,000" in name else options.rows
        seconds = seconds_per_row(shape, max(1, rows), options.repeat)
        results[name] = {
            "nanosecondsPerRow": round(seconds * 1e9, 1),
            "rowsPerSecond": round(1 / seconds),
        }
        if not options.json:
            print(f"{name:34}{seconds * 1e9:10.1f} ns/row{1 / seconds:16,.0f} rows/s", flush=True)
    if options.json:
        print(json.dumps({"bench": "fingerprint", "rows": options.rows, "results": results}))


if __name__ == "__main__":
    main()
