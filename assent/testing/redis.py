"""Real Redis servers for tests, examples and benchmarks: one way to start them.

    with RedisServer() as server:
        server.client().set("key", "value")

Each has a port and a data folder of its own on the loopback address. Nothing is left behind,
however the process that started it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from assent.protocol.errors import AssentError
from assent.testing.server import Server, ServerFailure, free_ports

PROGRAM_VARIABLE = "ASSENT_REDIS_SERVER"
"""Names another program than the redis-server on the PATH, such as a Valkey."""

_START_SECONDS = 30.0
_STARTS = 3
_SLOTS = 16384

# What the sink asks for: every write on disk before it is answered, nothing evicted.
_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
}


class RedisUnavailable(AssentError):
    """There is no Redis on this machine."""


class RedisServer:
    """One server. Its data outlive it until it is closed.

    `settings` are those of redis.conf, over defaults under which the sink starts.
    """

    def __init__(
        self, settings: Mapping[str, str] | None = None, program: str | None = None
    ) -> None:
        wanted = program or os.environ.get(PROGRAM_VARIABLE) or "redis-server"
        found = shutil.which(wanted)
        if found is None:
            raise RedisUnavailable(
                f"there is no {wanted} on the PATH; install it (Debian/Ubuntu: sudo apt install "
                f"redis-server; macOS: brew install redis), or name one in {PROGRAM_VARIABLE}"
            )
        self._program = found
        self._settings = {**_SETTINGS, **(settings or {})}
        self._folder: Path | None = None
        self._server: Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        for left in reversed(range(_STARTS)):
            self._folder = Path(tempfile.mkdtemp(prefix="assent-redis-"))
            [self.port] = free_ports(1)
            try:
                self.start()
                break
            except ServerFailure as error:
                self.close()
                # Between choosing a port and using it, somebody else may have taken it.
                if "Address already in use" not in str(error) or not left:
                    raise
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
        """Kill it and remove all data."""
        if self._server is not None and self._server.running:
            self._server.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server, self._folder = None, None

    @property
    def url(self) -> str:
        """Where it is, without any secret."""
        return self.url_by(self.port)

    def url_by(self, port: int) -> str:
        """As `url`, by the port of a proxy."""
        return f"redis://127.0.0.1:{port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    def client(self, **more: Any) -> Any:
        """A plain client of the library, not of the sink; answers are texts, as no type says."""
        more.setdefault("password", self._settings.get("requirepass"))
        return redis.Redis("127.0.0.1", self.port, decode_responses=True, **more)

    def start(self) -> None:
        """Start it, with the data that are there; returns when it answers."""
        assert self._folder is not None, "the server is closed"
        arguments = [text for item in self._settings.items() for text in (f"--{item[0]}", item[1])]
        self._server = Server(
            [
                self._program,
                *("--bind", "127.0.0.1", "--port", str(self.port)),
                *("--dir", str(self._folder), "--daemonize", "no"),
                *arguments,
            ],
            self._folder / "redis.log",
        )
        self.wait_until(lambda client: bool(client.ping()), "it was ready")

    def kill(self) -> None:
        """SIGKILL."""
        self._running().kill()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._running().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._running().resume()

    def restart(self) -> None:
        """Start it again with its data; stops it before, if it runs."""
        if self._running().running:
            self._running().stop()
        self.start()

    def wait_until(self, ready: Callable[[Any], bool], what: str) -> None:
        """Wait for what a client sees."""

        def is_so() -> bool:
            try:
                with self.client(socket_timeout=1.0) as client:
                    return ready(client)
            except redis.RedisError:
                return False

        self._running().wait_until(is_so, what, _START_SECONDS)

    def _running(self) -> Server:
        if self._server is None:
            raise ServerFailure("this Redis was not started")
        return self._server


class RedisCluster:
    """Several servers that share the slots, in cluster mode, without replicas."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = [
            RedisServer({"cluster-enabled": "yes", "cluster-node-timeout": "2000"})
            for _ in range(nodes)
        ]
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            for node in self.nodes:
                undo.enter_context(node)
            self._join()
            self._open = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """All nodes, any of which leads to the others."""
        return ",".join(node.url for node in self.nodes)

    def client(self) -> Any:
        """The library's own client of clusters; answers are texts."""
        return redis.RedisCluster("127.0.0.1", self.nodes[0].port, decode_responses=True)

    def _join(self) -> None:
        for number, node in enumerate(self.nodes):
            first, last = (_SLOTS * n // len(self.nodes) for n in (number, number + 1))
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        for node in self.nodes:
            node.wait_until(self._is_whole, "the cluster was whole")

    def _is_whole(self, client: Any) -> bool:
        info = client.execute_command("CLUSTER INFO")
        whole = int(info["cluster_known_nodes"]) == len(self.nodes)
        return whole and info["cluster_state"] == "ok"
