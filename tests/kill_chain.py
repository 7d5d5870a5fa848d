"""A job that is killed once in every epoch, each time at another instant, and started again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from assent.ledger.settlement import unfinished
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.job import sink_argument
from assent.testing.process import DriverProcess
from assent.testing.reader import ListingReader, count

SECONDS = 120.0
ROWS_PER_EPOCH = 2500  # three Arrow batches in each partition


class KillChain:
    """Runs `assent.testing.job` in a folder; `points` are where it is killed, one after another.

    `more` are arguments of every start, `turns` of one start after the other, again and again.
    """

    def __init__(
        self,
        folder: Path,
        front_end: str,
        points: Sequence[str],
        *,
        outputs: int = 1,
        script: Sequence[str] = ("-m", "assent.testing.job"),
        more: Sequence[str] = (),
        turns: Sequence[Sequence[str]] = ((),),
    ) -> None:
        self.folder = folder
        self.points = [CrashPoint.parse(point) for point in points]
        epochs = max((point.epoch or 0 for point in self.points), default=0) + 2
        self.boundaries: Boundaries = tuple(
            (ROWS_PER_EPOCH * number, ROWS_PER_EPOCH * number + 5)
            for number in range(1, epochs + 1)
        )
        self.outputs = [folder / f"output-{number}" for number in range(outputs)]
        self.checkpoint = folder / "checkpoint"
        self._command = [
            *script,
            "--front-end",
            front_end,
            *[
                word
                for output in self.outputs
                for word in sink_argument("files", {"path": str(output)})
            ],
            "--checkpoint",
            str(self.checkpoint),
            "--boundaries",
            format_boundaries(self.boundaries),
            *more,
        ]
        self._turns = cycle(turns)

    def run(self) -> None:
        """Kill at every point in turn, then let the job end. No reader ever sees a torn epoch."""
        readers = [ListingReader(output, self.boundaries) for output in self.outputs]
        for reader in readers:
            reader.__enter__()
        try:
            for point in self.points:
                with self.start(point) as driver:
                    driver.await_marker(SECONDS)
                    driver.kill_all()
            with self.start(None) as driver:
                driver.await_exit(SECONDS)
        finally:
            for reader in readers:
                reader.__exit__(None, None, None)
        for reader in readers:
            assert reader.listings > 0
            assert reader.violations == []

    def start(self, point: CrashPoint | None) -> DriverProcess:
        return DriverProcess([*self._command, *next(self._turns)], self.folder, crash=point)

    def assert_exactly_once(self) -> None:
        """What is visible equals the input, nothing is pending, and nothing is left on disk."""
        for output in self.outputs:
            assert count(output, self.boundaries).exact, count(output, self.boundaries)
            left = staged_files(output)
            assert [path.parent.name for path in left] == ["sealed"], left
        ledger, checkpoint = open_checkpoint(str(self.checkpoint))
        assert unfinished(ledger, checkpoint) == []
        assert list((self.checkpoint / "_assent" / ".new").iterdir()) == []


def staged_files(output: Path) -> list[Path]:
    """Every file and every empty folder that the files sink keeps beside its output."""
    staging = output.parent / f".{output.name}.assent"
    return sorted(path for path in staging.rglob("*") if path.is_file() or not any(path.iterdir()))
