"""Rows from Spark, and answers to it, without the pauses that the network takes in between.

Spark and Python talk over local TCP connections, in pieces, and a small piece is held back until
the one before it is acknowledged (Nagle's algorithm). Linux acknowledges some 40 ms late if nothing
is sent back meanwhile: in a small epoch, as long as all the rest of a task or a commit. What Spark
sends is acknowledged at once if Linux is told so; what Python sends need not be held back. With
`spark.python.unix.domain.socket.enabled` there are no such pauses.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Item = TypeVar("Item")

_OPEN_FILES = "/proc/self/fd"


def promptly(items: Iterator[Item]) -> Iterator[Item]:
    """The same items. While one is waited for, what arrives is acknowledged at once.

    Linux forgets the wish now and then, so it is told before each of them. Elsewhere, nothing
    happens.
    """
    connections = _local_connections()
    while True:
        for number in connections:
            _tell(number, socket.TCP_QUICKACK)
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def answer_promptly() -> None:
    """What this process sends over the connections that it has now is not held back any more.

    To be called at every commit: PySpark answers in several pieces.
    """
    for number in _local_connections():
        _tell(number, socket.TCP_NODELAY)


def _local_connections() -> list[int]:
    """All TCP connections of this process within this machine: which is Spark's, it says not."""
    if not hasattr(socket, "TCP_QUICKACK") or not os.path.isdir(_OPEN_FILES):
        return []
    return [number for number in map(int, os.listdir(_OPEN_FILES)) if _is_local(number)]


def _is_local(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with _borrowed(number) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            return connection.getpeername()[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    except OSError:
        return False  # it was closed meanwhile, or is no connection


def _tell(number: int, wish: int) -> None:
    with suppress(OSError), _borrowed(number) as connection:  # it may be closed by now
        connection.setsockopt(socket.IPPROTO_TCP, wish, 1)


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """The socket of that number, which stays its owner's: to close it is not up to us."""
    connection = socket.socket(fileno=number)
    try:
        yield connection
    finally:
        connection.detach()
