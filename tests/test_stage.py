"""The watch over an output notes what no reader should ever see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from assent.testing.reader import Rows
from assent.testing.stage import FilesStage, Stage, Watch


class Scripted(FilesStage):
    """Shows what it is told to, or fails."""

    def __init__(self) -> None:
        self.now: Rows | Exception = Counter()
        self.looked = threading.Semaphore(0)

    def rows(self, trial: str) -> Rows:
        self.looked.release()
        if isinstance(self.now, Exception):
            raise self.now
        return Counter(self.now)


def watched(stage: Scripted, states: Sequence[Rows | Exception]) -> Watch:
    with Watch(stage, "trial") as watch:
        for state in states:
            stage.now = state
            for _ in range(2):  # the second look has begun after the state was set
                while stage.looked.acquire(blocking=False):
                    pass
                assert stage.looked.acquire(timeout=10)
    return watch


def test_rows_that_come_one_after_the_other_are_fine() -> None:
    first: Rows = Counter({(0, 0): 1})
    watch = watched(Scripted(), [Counter(), first, OSError("its server is away"), first])
    assert watch.violations == []
    assert watch.looks > 2


def test_a_row_that_is_there_twice() -> None:
    watch = watched(Scripted(), [Counter({(0, 0): 1}), Counter({(0, 0): 2, (0, 1): 1})])
    assert watch.violations == ["1 rows are there twice, such as [(0, 0)]"]


def test_a_row_that_was_there_and_is_gone() -> None:
    watch = watched(Scripted(), [Counter({(0, 0): 1, (1, 3): 1}), Counter({(0, 0): 1})])
    assert watch.violations == ["1 rows were there and are gone, such as [(1, 3)]"]


def test_waiting_for_rows() -> None:
    stage: Stage = Scripted()
    assert isinstance(stage, Scripted)
    with Watch(stage, "trial") as watch:
        threading.Timer(0.1, lambda: setattr(stage, "now", Counter({(0, 0): 1}))).start()
        watch.await_count(1, timeout=10)
