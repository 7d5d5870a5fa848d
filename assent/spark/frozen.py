"""What every task finds in its Python process, kept out of the garbage collector's way.

PySpark collects garbage after every task, plan and commit, in processes that it uses again.
Each time the collector walks over all objects of all imported modules, tens of milliseconds long,
while Spark is at work on the end of the epoch.
"""

from __future__ import annotations

import gc
import os

_TIMES = 3
"""By then everything has been imported that is needed."""

_calls: dict[int, int] = {}
"""By process: a forked one begins anew."""


def freeze_modules() -> None:
    """To be called at every task, plan and commit: the first times, what there is is set aside.

    That takes no time: PySpark has just collected what was garbage. Objects are freed as before
    when nobody refers to them. Only a cycle that exists at that time and is given up later is not
    found any more.
    """
    own = os.getpid()
    _calls[own] = _calls.get(own, 0) + 1
    if _calls[own] <= _TIMES:
        gc.freeze()
