"""A Spark driver as a process of its own, with everything it starts, to be killed at will.

Linux only: the processes of a run are found through /proc and signalled through pidfd.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from assent.protocol.errors import AssentError
from assent.testing.crash import (
    CRASH_VARIABLE,
    MARKER_VARIABLE,
    CrashPoint,
    marker_of,
    release_of,
)

RUN_VARIABLE = "ASSENT_TEST_RUN"
KILL_SECONDS = 30.0

_POLL_SECONDS = 0.02
_TAIL_BYTES = 6000

_Found = TypeVar("_Found")


class DriverFailure(AssentError):
    """A driver did not do what was expected of it. The message ends with its last output."""


class ProcessKind(Enum):
    """What a process is to a Spark application."""

    DRIVER = "driver"
    """The Python process that was started."""
    JVM = "jvm"
    """The Java side of the driver."""
    EXECUTOR = "executor"
    """The Java process of an executor (only with a cluster master)."""
    DAEMON = "daemon"
    """A Python process that forks workers, one for each kind of work."""
    WORKER = "worker"
    """A Python process forked by a daemon, such as one that runs tasks."""
    OTHER = "other"
    """Anything else, such as the process that plans the epochs of a Python source."""


@dataclass(frozen=True)
class RunProcess:
    """A live process of a run."""

    pid: int
    kind: ProcessKind


class DriverProcess:
    """Runs `python <arguments>` and knows every process that comes of it.

    All of them inherit a variable whose value no other run has; by it they are found, also after
    their parents have died, and nothing else is ever signalled. Leaving the `with` block kills
    whatever is left and removes the run's temporary files, those of Spark and Java included.
    (Only a signal that ends the test process itself, other than Ctrl-C, leaves the driver running.)

    `folder` is where the output is kept and, if crash points are given, their markers; `python` is
    another interpreter than this one.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        crash: CrashPoint | Sequence[CrashPoint] | None = None,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise DriverFailure(f"drivers can be run and killed on Linux only, not {sys.platform}")
        self.run = secrets.token_hex(12)
        self.output = folder / f"driver-{self.run}.log"
        self._marker = folder / f"crash-{self.run}"
        points = (crash,) if isinstance(crash, CrashPoint) else crash
        self._crash: tuple[CrashPoint, ...] = tuple(points or ())
        self._arguments = tuple(arguments)
        self._scratch = Path(tempfile.mkdtemp(prefix="assent-run-", dir=folder))
        with self.output.open("wb") as output:
            self._root = subprocess.Popen(
                [python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(environment or {}),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what is left, and remove the run's temporary files. The output stays."""
        self.kill_all()
        self._root.wait(KILL_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # Looking.

    @property
    def pid(self) -> int:
        return self._root.pid

    @property
    def running(self) -> bool:
        """Whether the driver has not ended."""
        return self._root.poll() is None

    def processes(self) -> list[RunProcess]:
        """Every live process of this run."""
        return [RunProcess(pid, self._kind(pid)) for pid in self._pids()]

    def ancestors(self, pid: int) -> list[int]:
        """The processes above a process: its parent first."""
        above = []
        while pid := _parent(pid):
            above.append(pid)
        return above

    def await_process(self, kind: ProcessKind, timeout: float) -> RunProcess:
        """Wait until there is a process of that kind."""
        return self._await(
            lambda: next((process for process in self.processes() if process.kind is kind), None),
            timeout,
            f"no process of kind {kind.value!r} came up",
        )

    def await_marker(self, timeout: float, point: int = 0) -> int:
        """Wait until a process stands at the crash point; gives its process id."""
        return self._await(
            lambda: self.standing(point),
            timeout,
            f"the crash point {self._crash[point]} was not reached",
        )

    def await_marker_or_exit(self, timeout: float, point: int = 0) -> int | None:
        """As `await_marker`; None if the driver ended instead."""
        self._await(
            lambda: self.standing(point) or (self._root.poll() is not None) or None,
            timeout,
            f"the crash point {self._crash[point]} was not reached",
        )
        return self.standing(point)

    def standing(self, point: int = 0) -> int | None:
        """The process that has reached a crash point; None if none has."""
        try:
            text = marker_of(self._marker, point).read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.endswith("\n") else None

    def release(self, point: int = 0) -> None:
        """Let the process go on that stands at a crash point."""
        release_of(marker_of(self._marker, point)).touch()

    def release_everything(self) -> None:
        """Let go whoever stands at a crash point, now or later."""
        for point in range(len(self._crash)):
            self.release(point)

    def await_output(self, text: str, timeout: float) -> None:
        """Wait until the output's last lines hold the text."""
        self._await(
            lambda: True if text in self.tail() else None, timeout, f"{text!r} was not printed"
        )

    def await_none(self, timeout: float) -> None:
        """Wait until the run's processes have ended by themselves."""
        deadline = time.monotonic() + timeout
        while left := self.processes():
            if time.monotonic() > deadline:
                raise self._failure(f"after {timeout:g} s there are still {left}")
            time.sleep(_POLL_SECONDS)

    def await_exit(self, timeout: float, expected: int | None = 0) -> int:
        """Wait for the end of the driver; a code other than `expected` fails (None: any)."""
        try:
            code = self._root.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"the driver still runs after {timeout:g} s") from None
        if expected is not None and code != expected:
            raise self._failure(f"the driver ended with {code}, not {expected}")
        return code

    def tail(self) -> str:
        """The last lines of what the driver and its processes printed."""
        with self.output.open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _TAIL_BYTES))
            return output.read().decode(errors="replace")

    # Killing.

    def kill_all(self) -> None:
        """SIGKILL every process of the run; returns when none is left."""
        deadline = time.monotonic() + KILL_SECONDS
        # Twice: for a moment within exec a process shows no environment.
        empty = 0
        while empty < 2:
            found = [pid for pid in self._pids() if self._kill(pid)]
            self._root.poll()
            empty = 0 if found else empty + 1
            if found and time.monotonic() > deadline:
                raise self._failure(f"processes {found} outlive SIGKILL")
            time.sleep(_POLL_SECONDS)

    def pause_all(self) -> None:
        """SIGSTOP every process of the run."""
        for pid in self._pids():
            self._signal(pid, signal.SIGSTOP)

    def resume_all(self) -> None:
        """SIGCONT every process of the run."""
        for pid in self._pids():
            self._signal(pid, signal.SIGCONT)

    def kill_driver(self) -> None:
        """SIGKILL the driver, both its sides, and nothing else; returns when they are dead."""
        for kind in (ProcessKind.JVM, ProcessKind.DRIVER):
            for process in self.processes():
                if process.kind is kind:
                    self.kill(process)
        self._root.wait(KILL_SECONDS)

    def kill(self, process: RunProcess) -> None:
        """SIGKILL one process of the run; returns when it is dead."""
        self._kill(process.pid)
        deadline = time.monotonic() + KILL_SECONDS
        while self._owns(process.pid):
            if time.monotonic() > deadline:
                raise self._failure(f"process {process.pid} outlives SIGKILL")
            time.sleep(_POLL_SECONDS)
        self._root.poll()

    # How.

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            # A killed process removes none of its temporary files; here they are found.
            "TMPDIR": str(self._scratch),
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._scratch} -XX:-UsePerfData",
            RUN_VARIABLE: self.run,
            **more,
        }
        for variable in (CRASH_VARIABLE, MARKER_VARIABLE):
            environment.pop(variable, None)
        if self._crash:
            points = ",".join(map(str, self._crash))
            environment |= {CRASH_VARIABLE: points, MARKER_VARIABLE: str(self._marker)}
        return environment

    def _pids(self) -> Iterator[int]:
        return (
            int(entry) for entry in os.listdir("/proc") if entry.isdigit() and self._owns(entry)
        )

    def _owns(self, pid: int | str) -> bool:
        mine = f"{RUN_VARIABLE}={self.run}".encode()
        return mine in _read(f"/proc/{pid}/environ").split(b"\0")

    def _kind(self, pid: int) -> ProcessKind:
        if pid == self._root.pid:
            return ProcessKind.DRIVER
        command = _read(f"/proc/{pid}/cmdline").split(b"\0")
        if b"org.apache.spark.deploy.SparkSubmit" in command:
            return ProcessKind.JVM
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
            return ProcessKind.EXECUTOR
        if b"pyspark.daemon" not in command:
            return ProcessKind.OTHER
        parent = _read(f"/proc/{_parent(pid)}/cmdline").split(b"\0")
        return ProcessKind.WORKER if b"pyspark.daemon" in parent else ProcessKind.DAEMON

    def _kill(self, pid: int) -> bool:
        return self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        """Whether the process was there, and ours, when it was signalled."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # The number may have passed to a stranger since it was listed. The descriptor holds
            # on to one process, so what is checked now is what is killed.
            if not self._owns(pid):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _await(self, look: Callable[[], _Found | None], timeout: float, otherwise: str) -> _Found:
        deadline = time.monotonic() + timeout
        while True:
            # Asked before looking: what a driver did last is seen even if it has ended since.
            code = self._root.poll()
            found = look()
            if found is not None:
                return found
            if code is not None:
                raise self._failure(f"{otherwise}: the driver ended with {code}")
            if time.monotonic() > deadline:
                raise self._failure(f"{otherwise} within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def _failure(self, what: str) -> DriverFailure:
        command = " ".join(self._arguments)
        return DriverFailure(f"{what}\n  driver: {command}\n  output: {self.output}\n{self.tail()}")


def _read(path: str) -> bytes:
    """The content of a file in /proc; nothing if the process is gone, a zombie or another's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _parent(pid: int) -> int:
    # The second field, the name, may itself hold spaces and parentheses.
    _, _, rest = _read(f"/proc/{pid}/stat").rpartition(b") ")
    return int(rest.split()[1]) if rest else 0
