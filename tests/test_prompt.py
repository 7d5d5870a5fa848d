"""Nothing is acknowledged late or held back on a local connection, and nothing else changes."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from assent.protocol.guarantee import Guarantee
from assent.protocol.policy import Policy
from assent.sinks.files import FilesSink
from assent.spark.prompt import answer_promptly, promptly
from assent.spark.settings import Settings
from assent.spark.source import EpochWriter

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


def receive_both(end: socket.socket) -> None:
    received = b""
    while not received.endswith(b"second"):
        received += end.recv(100)


def rounds(sender: socket.socket, receiver: socket.socket) -> Iterator[float]:
    """Two pieces in each, the second of which is held back; how long they take to arrive."""
    for _ in range(ROUNDS):
        started = time.perf_counter()
        sender.send(b"first")
        threading.Timer(0.005, sender.send, [b"second"]).start()
        receive_both(receiver)
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


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told")


@on_linux
def test_nothing_is_acknowledged_late(pair: tuple[socket.socket, socket.socket]) -> None:
    slow = min(list(rounds(*pair))[1:])
    quick = min(list(promptly(rounds(*pair)))[1:])
    print(f"by itself {1000 * slow:.1f} ms, promptly {1000 * quick:.1f} ms")
    assert quick < LATE_SECONDS <= slow


def answers(asking: socket.socket, answering: socket.socket) -> Iterator[float]:
    """An answer in two pieces in each, as PySpark gives it; how long it takes to arrive."""
    for _ in range(ROUNDS):
        asking.send(b"question")
        answering.recv(100)
        started = time.perf_counter()
        answering.send(b"first")
        answering.send(b"second")
        receive_both(asking)
        yield time.perf_counter() - started


@on_linux
def test_no_piece_of_an_answer_is_held_back(pair: tuple[socket.socket, socket.socket]) -> None:
    slow = min(list(answers(*pair))[1:])
    answer_promptly()
    quick = min(list(answers(*pair))[1:])
    print(f"by itself {1000 * slow:.1f} ms, promptly {1000 * quick:.1f} ms")
    assert quick < LATE_SECONDS <= slow


@on_linux
def test_the_process_that_commits_answers_promptly(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    writer = EpochWriter(Settings(None, Guarantee.NONE, Policy()), FilesSink("/nowhere"), {})
    writer.commit([], 0)
    for end in pair:
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
