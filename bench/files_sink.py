"""Files: `python -m bench.files_sink [--quick]`.

Rows per second of whole epochs, with two tasks: Assent against Spark's own file sink.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import command, target
from bench.orders import orders
from bench.query import Options, Query, in_turns, rates, session
from bench.result import Result, ratio
from bench.target import Outcome

TASKS = 2
GROUP = "two tasks, parquet"
BUILT_IN, EXACTLY_ONCE = "Spark's file sink", "assent, exactly_once"
FAIRNESS = (
    "Parquet with snappy for all, into a fresh folder of the same disk in every run. Spark's file "
    "sink is exactly-once for readers that know its metadata, and flushes nothing to the disk; "
    "Assent flushes every file and folder with exactly_once and at_least_once, and nothing with "
    "none, which is the contender of equal durability. Spark hands batches of rows to Python, "
    "whose limit in bytes is lifted, as docs/tuning.md says, but for one contender; its own sink "
    "has none."
)
SIZES = (
    command.Size("rows", 1_000_000, 20_000, "rows of an epoch"),
    command.Size("epochs", 4, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
)


def measure(options: argparse.Namespace) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="assent-bench-") as outputs,
        session(TASKS) as spark,
    ):

        @contextmanager
        def stage() -> Iterator[Options]:
            folder = tempfile.mkdtemp(dir=outputs)
            yield {"path": str(Path(folder, "orders"))}
            # Tasks of a query that was stopped may write for a moment. What comes late goes with
            # all outputs, when Spark has ended.
            shutil.rmtree(folder, ignore_errors=True)

        frame = orders(spark, options.rows, TASKS)
        contenders = [Query(BUILT_IN, frame, {"compression": "snappy"}, "parquet", stage)]
        contenders += [
            Query(
                f"assent, {guarantee}",
                frame,
                {"compression": "snappy", "deliveryGuarantee": guarantee},
                "assent-files",
                stage,
            )
            for guarantee in ("exactly_once", "at_least_once", "none")
        ]
        contenders += [sink.untuned() for sink in contenders if sink.name == EXACTLY_ONCE]
        found = in_turns(contenders, options.epochs, options.rounds, quick=options.quick)
    measures = tuple(rates(GROUP, found))
    outcome = Outcome(target.FILES, ratio(measures, GROUP, EXACTLY_ONCE, BUILT_IN))
    return Result("files_sink", "Files", FAIRNESS, {}, measures, (outcome,))


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
