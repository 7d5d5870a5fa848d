"""What is awaited from a local connection is acknowledged at once, and nothing else changes."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from assent.spark.prompt import promptly

ROUNDS = 5
# What the kernel takes at least to acknowledge by itself.
LATE_SECONDS = 0.04


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection that holds small pieces back, as Spark's does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            yield sender, receiver


def rounds(sender: socket.socket, receiver: socket.socket) -> Iterator[float]:
    """Two pieces in each, the second of which is held back; how long they take to arrive."""
    for _ in range(ROUNDS):
        started = time.perf_counter()
        sender.send(b"first")
        threading.Timer(0.005, sender.send, [b"second"]).start()
        received = b""
        while not received.endswith(b"second"):
            received += receiver.recv(100)
        receiver.send(b"thanks")  # a connection that answers is acknowledged late from then on
        sender.recv(100)
        yield time.perf_counter() - started


def test_items_pass_unchanged_and_no_connection_is_left_open() -> None:
    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    assert list(promptly(iter([1, 2, 3]))) == [1, 2, 3]
    assert list(promptly(iter([]))) == []
    if sys.platform == "linux":
        assert os.listdir("/proc/self/fd") == before


def test_an_error_passes_unchanged(pair: tuple[socket.socket, socket.socket]) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    given = promptly(items())
    assert next(given) == 1
    with pytest.raises(ValueError, match="broken"):
        next(given)
    sender, receiver = pair
    sender.send(b"still open")
    assert receiver.recv(100) == b"still open"


def test_a_connection_that_its_owner_closes_meanwhile_is_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sender, receiver = pair
    receiver.settimeout(10.0)
    given = promptly(iter([1, 2]))
    assert next(given) == 1
    sender.close()
    assert receiver.recv(100) == b""  # nobody else holds it open
    assert list(given) == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told")
def test_nothing_is_acknowledged_late(pair: tuple[socket.socket, socket.socket]) -> None:
    slow = min(list(rounds(*pair))[1:])
    quick = min(list(promptly(rounds(*pair)))[1:])
    print(f"by itself {1000 * slow:.1f} ms, promptly {1000 * quick:.1f} ms")
    assert quick < LATE_SECONDS <= slow
