"""A sink under test: what the conformance kit has to know of its store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import pyarrow as pa

from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.sink import Sink

Row: TypeAlias = tuple[int, str]
"""The column `id` and the column `text`."""

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])

_PROCESS_SECONDS = 60.0


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as the kit writes them."""
    ids, texts = [row[0] for row in rows], [row[1] for row in rows]
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(texts, pa.string())], schema=SCHEMA)


class Subject(ABC):
    """One place in a store, empty at the start, and the sink that writes there.

    `sink` gives a new object each time, as each process has one. It has to be one that can be
    pickled by reference to its class: it is sent to other processes.
    """

    transactional: bool = True
    """False for idempotent stores, whose rows are visible before the decision. Keys are unique."""

    @abstractmethod
    def sink(self) -> Sink[Any]:
        """A sink for the place, which takes rows of SCHEMA."""

    @abstractmethod
    def visible(self) -> list[Row]:
        """What a reader sees now, in any order, read by other means than the sink's own."""

    def give_up(self, handle: Handle) -> None:
        """Make the store abort a prepared transaction by itself, as after its timeout."""
        self.sink().abort(handle)

    def leftovers(self) -> list[str]:
        """Whatever else must be gone when nothing is pending, such as staging tables or files."""
        return []


def prepare(sink: Sink[Any], name: TransactionName, rows: Sequence[Row], epoch: int = 0) -> Handle:
    """One task, in this process, up to its handle."""
    transaction = sink.begin(name, epoch)
    sink.write(transaction, batch(rows))
    return sink.pre_commit(transaction)


def settle_elsewhere(sink: Sink[Any], act: str, handle: Handle) -> str:
    """Call `commit`, `abort` or `verdict` in another process; gives the verdict afterwards."""
    with _process(_settle, pickle.dumps(sink), act, str(handle)) as (_, answers):
        return _received(answers)


@contextmanager
def writer_killed_after(
    sink: Sink[Any], name: TransactionName, rows: Sequence[Row], step: str
) -> Iterator[Handle | None]:
    """A task in another process, killed (SIGKILL) after `begin`, `write` or `pre_commit`.

    Gives the handle, if there is one by then.
    """
    with _process(_write, pickle.dumps(sink), str(name), list(rows), step) as (pid, answers):
        text = _received(answers)
        os.kill(pid, signal.SIGKILL)
    yield Handle.parse(text) if text else None


def _settle(answers: Connection, sink: bytes, act: str, handle: str) -> None:
    received: Sink[Any] = pickle.loads(sink)
    parsed = Handle.parse(handle)
    if act != "verdict":
        getattr(received, act)(parsed)
    answers.send(received.verdict(parsed).value)


def _write(answers: Connection, sink: bytes, name: str, rows: list[Row], step: str) -> None:
    received: Sink[Any] = pickle.loads(sink)
    transaction = received.begin(TransactionName.parse(name), 0)
    text = ""
    if step != "begin":
        received.write(transaction, batch(rows))
    if step == "pre_commit":
        text = str(received.pre_commit(transaction))
    answers.send(text)
    signal.pause()


def _received(answers: Connection) -> str:
    if not answers.poll(_PROCESS_SECONDS):
        raise AssertionError(f"the other process did not answer within {_PROCESS_SECONDS:g} s")
    text: str = answers.recv()
    return text


@contextmanager
def _process(target: Any, *arguments: object) -> Iterator[tuple[int, Connection]]:
    """A process that shares nothing with this one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield process.pid, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
