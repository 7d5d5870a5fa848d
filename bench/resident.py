"""The memory that the processes of a run have in the machine, by what they are to Spark."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

DRIVER, JVM = "driver, Python", "driver, JVM"
TASKS, PLANNING = "task workers, Python", "planning and commit, Python"
KINDS = (DRIVER, JVM, TASKS, PLANNING)

_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass
class ResidentWatch:
    """Samples the resident memory of this process and its descendants, until it is left.

    Processes of one kind are added up. Pages that they share count in each of them.
    """

    seconds: float = 0.5
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            found: dict[str, float] = defaultdict(float)
            for process in _family(os.getpid()):
                found[_kind(process)] += _resident(process)
            for kind, size in found.items():
                self.samples[kind].append(size)


def _family(process: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (text := _read(f"/proc/{entry}/stat")):
            # The second field, the name, may itself hold spaces and parentheses.
            parents[int(text.rpartition(") ")[2].split()[1])].append(int(entry))
    found = [process]
    for member in found:
        found += parents[member]
    return found


def _kind(process: int) -> str:
    if process == os.getpid():
        return DRIVER
    command = _read(f"/proc/{process}/cmdline").split("\0")
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return JVM
    if "pyspark.worker" in command:
        return TASKS
    # Every other kind of work has a module and processes of its own.
    return PLANNING if any(part.startswith("pyspark.") for part in command) else "others"


def _resident(process: int) -> float:
    """In MiB."""
    fields = _read(f"/proc/{process}/statm").split()
    return int(fields[1]) * _PAGE / 2**20 if fields else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""  # gone by itself
