"""A real Spark cluster for tests: a master and workers that count as different hosts.

Spark runs the speculative copy of a task on another host only, which `local-cluster` does not
have. Here each worker has a loopback address of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from assent.testing.jars import java
from assent.testing.server import Server, free_ports

_START_SECONDS = 60.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """A master and workers with one core each. Use as a context manager; `url` is the master's."""

    def __init__(self, workers: int = 2) -> None:
        self._count = workers
        [self._port] = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="assent-spark-"))
        self._servers: list[Server] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all, and remove what executors left."""
        for server in reversed(self._servers):
            if server.running:
                server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        master = self._run(
            "master", _MASTER, "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"
        )
        _await(master, "I have been elected leader")
        for number in range(1, self._count + 1):
            # The whole of 127/8 is this machine.
            host = f"127.0.0.{number}"
            worker = self._run(
                f"worker-{number}",
                _WORKER,
                *("--host", host, "--port", "0", "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / host)),
                self.url,
            )
            _await(worker, "Successfully registered with master")

    def _run(self, name: str, main: str, *arguments: str) -> Server:
        home = Path(pyspark.__file__).parent
        settings = [f"SPARK_HOME={home}", "SPARK_SCALA_VERSION=2.13", "SPARK_NO_DAEMONIZE=1"]
        command = [java(), "-Xmx512m", "-XX:-UsePerfData", "-cp", f"{home / 'jars'}/*", main]
        env = shutil.which("env") or "/usr/bin/env"
        # Executors inherit what a worker has, and must not stand at crash points of another run.
        unset = [part for name in os.environ if name.startswith("ASSENT_") for part in ("-u", name)]
        server = Server(
            [env, *unset, *settings, *command, *arguments], self._folder / f"{name}.log"
        )
        self._servers.append(server)
        return server


def _await(server: Server, line: str) -> None:
    server.wait_until(lambda: line in server.tail(), f"{line!r} was printed", _START_SECONDS)
