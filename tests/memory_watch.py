"""A partitioner whose process is killed when it takes too much memory, as in a container."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WATCH_VARIABLE = "ASSENT_TEST_MEMORY"
LIMIT = 512 * 2**20

_PAGE = resource.getpagesize()


def _guard() -> None:
    while True:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
        if resident > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)


_guarded = threading.Thread(target=_guard, daemon=True)


def place(batch: pa.RecordBatch, partitions: int) -> npt.NDArray[np.int32]:
    if _guarded.ident is None:
        _guarded.start()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(os.environ[WATCH_VARIABLE], str(os.getpid())).write_text(str(peak))
    return np.zeros(batch.num_rows, np.int32)
