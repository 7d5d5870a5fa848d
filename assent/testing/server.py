"""A server process for tests, the demo and benchmarks: started, signalled, never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from assent.protocol.errors import AssentError
from assent.testing import guard

STOP_SECONDS = 60.0

_POLL_SECONDS = 0.02
_TAIL_BYTES = 6000
_LOWEST_PORT = 12000


class ServerFailure(AssentError):
    """A server did not do what was expected of it. The message ends with its last output."""


class Server:
    """One server process, which dies with the process that started it, however that ends.

    Its output is appended to `log`, so that a restart keeps what came before.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self._name = log.stem
        watched, ready = os.pipe()
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(ready)]
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*guarded, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[ready],
                    # Ctrl-C in the terminal is for the tests, which then stop their servers.
                    start_new_session=True,
                )
            os.close(ready)
            # Not before it is watched may it be paused: it could not see its parent's end.
            if not os.read(watched, 1):
                self._process.wait(STOP_SECONDS)
                raise self.failure("could not be guarded")
        finally:
            os.close(watched)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        """SIGSTOP: the process keeps its sockets and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """SIGTERM; returns when the process is gone, killed if it would not go."""
        self._process.terminate()
        self.resume()  # a paused process does not see SIGTERM
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for a condition; fails with the server's last output when it ends or is late."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise self.failure(f"ended with {self._process.returncode} before {what}")
            if time.monotonic() > deadline:
                raise self.failure(f"took longer than {seconds:g} s until {what}")
            time.sleep(_POLL_SECONDS)

    def failure(self, what: str) -> ServerFailure:
        """An error that shows the end of the server's output."""
        return ServerFailure(f"{self._name} {what}; its last output ({self.log}):\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of the output."""
        with self.log.open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _TAIL_BYTES))
            return output.read().decode(errors="replace")


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that nobody listens on, all different.

    They lie below the range from which the kernel serves outgoing connections: there, a client
    that keeps trying to reach a killed server may connect to itself and hold the port, and the
    server could not come back.
    """
    highest = _lowest_ephemeral_port() - 1
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.enter_context(candidate)
            wanted = _LOWEST_PORT + int.from_bytes(os.urandom(4)) % max(highest - _LOWEST_PORT, 1)
            try:
                candidate.bind(("127.0.0.1", wanted if highest > _LOWEST_PORT else 0))
            except OSError:
                continue  # taken
            ports.append(candidate.getsockname()[1])
        return ports


def _lowest_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 0
