"""Where the jobs of the demo, of fault tests and of chaos runs write: a folder, or a real server.

What a stage reads back, it reads by other means than the sink's own.
"""

from __future__ import annotations

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

from assent.testing.job import sink_argument
from assent.testing.proxy import Proxy
from assent.testing.reader import Rows, data_files, read_rows

STAGES = ("files", "hbase", "kafka", "mysql", "postgres", "redis")
"""The sinks that there is a stage for."""
VARIANTS = (
    *("files", "kafka", "postgres-prepared", "postgres-staged"),
    *("mysql-prepared", "mysql-staged", "redis", "hbase"),
)
"""Every sink in every mode in which it commits."""

_SECONDS_BETWEEN_LOOKS = 0.05
_AWAIT_SECONDS = 60.0


class StageServer(Protocol):
    """A server of a stage, to which things may happen."""

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def start(self) -> None:
        """Start it again, with its data; returns when it answers."""


class Stage(ABC):
    """The place of any number of trials, each with an output of its own. A context manager."""

    name: ClassVar[str]
    """As in the format `assent-<name>`."""
    atomic: bool = False
    """Whether readers see all of an epoch at once, or nothing of it."""
    expires: bool = False
    """Whether the store may give up what is pending: by a timeout, or by an administrator."""
    proxied: bool = False
    """Whether a proxy that can be cut stands before the server, for the sink alone."""

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
        for proxy in self.proxies:
            proxy.close()

    @abstractmethod
    def start(self) -> None:
        """Start the server, if there is one."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and remove its data."""

    @abstractmethod
    def prepare(self, trial: str) -> Sequence[str]:
        """Make room for a trial; gives what `assent.testing.job` has to be told."""

    @abstractmethod
    def rows(self, trial: str) -> Rows:
        """What a reader sees of the trial's output."""

    @abstractmethod
    def pending(self, trial: str) -> list[str]:
        """Whatever is prepared, open or staged: to be empty when all is done."""

    def expire(self, trial: str) -> None:
        """Let the store give up what is pending; returns when it has."""
        raise NotImplementedError(f"{self.name} never gives anything up")

    @property
    def servers(self) -> Sequence[StageServer]:
        return ()

    @functools.cached_property
    def proxies(self) -> list[Proxy]:
        """What stands before the servers, from the first trial on."""
        return []

    def _port(self, port: int) -> int:
        """Where the sink finds the server of that port: there, or at a proxy."""
        if not self.proxied:
            return port
        self.proxies.append(Proxy(port))
        return self.proxies[-1].port

    def watch(self, trial: str) -> Watch:
        """A reader that looks all the time."""
        return Watch(self, trial)


class Watch:
    """Reads a trial's output again and again, and notes what no reader should ever see.

    That is a row twice, and a row that was there and is gone. Use as a context manager.
    """

    def __init__(self, stage: Stage, trial: str) -> None:
        self.looks = 0
        self.totals: list[tuple[float, int]] = []
        """How many rows there were, and since when: by the monotonic clock."""
        self.violations: list[str] = []
        self._stage = stage
        self._trial = trial
        self._seen: Rows = Counter()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="watch")
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._executor.shutdown()
        if self._running is not None:
            self._running.result()  # a watch that died without a word would prove nothing

    @property
    def count(self) -> int:
        """How many rows were seen so far."""
        return self.totals[-1][1] if self.totals else 0

    def rows(self) -> Rows:
        """What is there now, judged like all that was seen before."""
        with self._changed:  # one look at a time: an older one must not be judged after a newer
            found = self._stage.rows(self._trial)
            self._judge(found, self._seen - found)
        return found

    def torn(self, rows_per_epoch: int) -> list[int]:
        """Totals that are no whole number of epochs: none, where epochs are atomic."""
        return sorted({total for _, total in self.totals if total % rows_per_epoch})

    def await_count(self, rows: int, timeout: float = _AWAIT_SECONDS) -> None:
        """Wait until so many rows were seen."""
        with self._changed:
            seen = self._changed.wait_for(lambda: self._seen.total() >= rows, timeout)
            assert seen, f"{self._seen.total()} rows were seen, not {rows}"

    def _judge(self, found: Rows, gone: Rows) -> None:
        twice = sorted(row for row, times in found.items() if times > 1)
        if twice:
            self._note(f"{len(twice)} rows are there twice, such as {twice[:5]}")
        if gone:
            self._note(f"{len(gone)} rows were there and are gone, such as {sorted(gone)[:5]}")
        self._seen |= found
        self.looks += 1
        if not self.totals or self.totals[-1][1] != found.total():
            self.totals.append((time.monotonic(), found.total()))
        self._changed.notify_all()

    def _note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def _run(self) -> None:
        while not self._stopped.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                self.rows()
            except Exception:
                continue  # its server is away; whoever calls `rows` at the end is not so forgiving


def open_stage(name: str, folder: Path, *, hostile: bool = False) -> Stage:
    """The stage of one of STAGES or VARIANTS. Imports what that one needs, and no more.

    A hostile one has a proxy before its server that can be cut, and timeouts that come soon.
    """
    sink, _, mode = name.partition("-")
    stage: Stage = FilesStage(folder)
    if sink == "hbase":
        from assent.testing.stage_hbase import HBaseStage

        stage = HBaseStage()
    elif "kafka" in (sink, mode):
        from assent.testing.stage_kafka import BuiltInStage, KafkaStage

        made = KafkaStage if sink == "kafka" else BuiltInStage
        stage = made(proxied=True, transaction_timeout="15s") if hostile else made()
    elif sink == "mysql":
        from assent.testing.stage_mysql import MySqlStage

        stage = MySqlStage(commit_mode=mode or "auto")
    elif sink == "postgres":
        from assent.testing.stage_postgres import PostgresStage

        stage = PostgresStage(commit_mode=mode or "auto")
    elif sink == "redis":
        from assent.testing.stage_redis import RedisStage

        stage = RedisStage()
    stage.proxied = hostile
    return stage


class FilesStage(Stage):
    """Parquet files in a folder: there is nothing to start."""

    name = "files"
    atomic = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def prepare(self, trial: str) -> Sequence[str]:
        return sink_argument("files", {"path": str(self._folder / trial)})

    def rows(self, trial: str) -> Rows:
        return read_rows(data_files(self._folder / trial))

    def pending(self, trial: str) -> list[str]:
        staging = self._folder / f".{trial}.assent"
        files = [path for path in staging.rglob("*") if path.is_file()]
        return [path.name for path in files if path.parent.name != "sealed"]
