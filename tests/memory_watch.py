"""A partitioner that limits the memory of its process, and writes down how much it took."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WATCH_VARIABLE = "ASSENT_TEST_MEMORY"
LIMIT = 512 * 2**20


def place(batch: pa.RecordBatch, partitions: int) -> npt.NDArray[np.int32]:
    # All that the process may write to. Not the address space, as Spark would limit it: most of
    # that are libraries, and what threads set aside and never touch.
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(os.environ[WATCH_VARIABLE], str(os.getpid())).write_text(str(peak))
    return np.zeros(batch.num_rows, np.int32)
