"""Where the demo's jobs write: a folder, or a real server that is started for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from assent.testing.reader import Rows, data_files, read_rows

STAGES = ("files", "kafka")
"""The sinks that the demo can show."""


class Stage(ABC):
    """The place of all trials of a demo. Use as a context manager."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start the server, if there is one."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and remove its data."""

    @abstractmethod
    def arguments(self, trial: Path) -> Sequence[str]:
        """What `assent.testing.job` has to be told to write there; the folder is the trial's."""

    @abstractmethod
    def rows(self, trial: Path) -> Rows:
        """What an independent reader sees of the trial's output."""


def open_stage(sink: str) -> Stage:
    """The stage for one of STAGES. Imports what that one needs, and no more."""
    if sink == "kafka":
        from assent.ops.stage_kafka import KafkaStage

        return KafkaStage()
    return FilesStage()


class FilesStage(Stage):
    """Parquet files in the trial's folder: there is nothing to start."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def arguments(self, trial: Path) -> Sequence[str]:
        return ["--sink", "files", "--output", str(trial / "output")]

    def rows(self, trial: Path) -> Rows:
        return read_rows(data_files(trial / "output"))
