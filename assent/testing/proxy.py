"""A TCP proxy between a client and a server, which a test can cut and stop."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CHUNK = 65536


class Proxy:
    """Forwards connections on a port of its own to a server on the loopback address.

    `watch` is called with every piece that a client sends, before the server gets it. It may call
    `cut`, and the piece is lost with the connection; or `cut_answers`, and the server gets the
    piece, but its answer is lost.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.watch: Callable[[bytes], None] = lambda piece: None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._refusing = False
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def cut(self) -> None:
        """End all connections at once, on both sides. New ones are let through."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _end(end)

    def cut_answers(self) -> None:
        """End all connections to clients; what they have sent still reaches the server."""
        with self._lock:
            pairs = list(self._pairs)
        for client, _ in pairs:
            _end(client)

    def stop(self) -> None:
        """End all connections, and let no new ones through, until `resume`."""
        self._refusing = True
        self.cut()

    def resume(self) -> None:
        self._refusing = False

    def close(self) -> None:
        """End everything."""
        self._closed = True
        _end(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            self._start(functools.partial(self._forward, client, server, watched=True))
            self._start(functools.partial(self._forward, server, client, watched=False))

    def _forward(self, source: socket.socket, sink: socket.socket, *, watched: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_CHUNK):
                if watched:
                    self.watch(piece)
                sink.sendall(piece)
        for end in (sink,) if watched else (source, sink):
            _end(end)
        if not watched:
            with self._lock:
                self._pairs = [pair for pair in self._pairs if pair != (sink, source)]
            source.close()
            sink.close()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
