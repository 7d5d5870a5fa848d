"""The files sink when files vanish, processes die, and several do the same at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest

from assent.protocol.errors import (
    ConfigurationError,
    InDoubtError,
    LedgerError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.name import TransactionName
from assent.protocol.verdict import Verdict
from assent.sinks import folder
from assent.sinks.files import FilesSink
from tests.files_kit import (
    IDENTITY,
    await_closed,
    left,
    make_sink,
    name,
    numbers,
    only_seal,
    pending,
    settle,
    stage,
    visible,
)


class Crash(BaseException):
    """Not an Exception: nothing on the way may take it for an error and go on."""


@pytest.fixture(params=[(), ("g",)], ids=["plain", "partitioned"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FilesSink]:
    yield make_sink(tmp_path / "out", request.param)
    await_closed(tmp_path)


def test_vanished_files_are_aborted_and_the_rest_can_be_rewritten(sink: FilesSink) -> None:
    kept, lost = stage(sink, 0, 0, numbers(0)), stage(sink, 0, 1, numbers(5))
    folder.remove_tree(sink.staging / IDENTITY / "open" / lost.name)
    sink.commit(kept)
    assert sink.verdict(lost) is Verdict.ABORTED
    with pytest.raises(TornEpochError, match=lost.name):
        sink.commit(lost)
    with pytest.raises(InDoubtError, match="was not published"):
        sink.publish(0, [kept, lost])
    assert visible(sink) == []
    again = stage(sink, 0, 1, numbers(5))
    settle(sink, 0, [kept, again])
    assert visible(sink) == list(range(10))
    assert sink.verdict(lost) is Verdict.ABORTED


def test_a_transaction_that_lost_one_of_its_files_is_not_committed(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out", partition_columns=["g"])
    sink.check(numbers(0).schema)
    damaged = stage(sink, 0)
    os.remove(next((sink.staging / IDENTITY / "open").rglob("*.parquet")))
    assert sink.verdict(damaged) is Verdict.ABORTED
    with pytest.raises(TornEpochError):
        sink.commit(damaged)

    torn = stage(sink, 1)
    sink.commit(torn)
    os.remove(next((sink.staging / IDENTITY / "ready").rglob("*.parquet")))
    assert sink.verdict(torn) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError):
        sink.commit(torn)
    with pytest.raises(InDoubtError, match="was not published"):
        sink.publish(1, [torn])
    assert visible(sink) == []


def test_files_of_nobody_are_not_published(sink: FilesSink) -> None:
    decided, other = stage(sink, 0, 0), stage(sink, 0, 1)
    sink.commit(decided)
    sink.commit(other)
    with pytest.raises(InDoubtError, match=TransactionName.parse(other.name).nonce):
        sink.publish(0, [decided])
    assert visible(sink) == []


def test_publishing_before_committing_is_refused(sink: FilesSink) -> None:
    handle = stage(sink, 0)
    with pytest.raises(InDoubtError, match="pending"):
        sink.publish(0, [handle])
    settle(sink, 0, [handle])
    assert visible(sink) == [0, 1, 2, 3, 4]


def test_without_the_staging_folder_nobody_knows(sink: FilesSink, tmp_path: Path) -> None:
    handle = stage(sink, 0)
    settle(sink, 0, [handle])
    folder.remove_tree(sink.staging)
    assert sink.verdict(handle) is Verdict.COMMITTED
    settle(sink, 0, [handle])
    os.rename(sink.output / "epoch=3f2a9c0d-000000", tmp_path / "taken")
    assert sink.verdict(handle) is Verdict.UNKNOWN
    with pytest.raises(InDoubtError):
        sink.commit(handle)
    with pytest.raises(ConfigurationError, match="share the disk"):
        sink.begin(name(), 1)


def test_a_foreign_folder_in_the_way_is_not_overwritten(sink: FilesSink) -> None:
    target = sink.output / "epoch=3f2a9c0d-000000"
    target.mkdir()
    handle = stage(sink, 0)
    sink.commit(handle)
    with pytest.raises(ConfigurationError, match="nothing was overwritten"):
        sink.publish(0, [handle])
    assert os.listdir(target) == []
    assert sink.verdict(handle) is Verdict.COMMITTED
    target.rmdir()
    sink.publish(0, [handle])
    assert visible(sink) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("content", ["", "{", '{"version":2,"transactions":[]}', '{"version":1}'])
def test_a_damaged_seal_is_an_error(sink: FilesSink, content: str) -> None:
    handle = stage(sink, 0)
    settle(sink, 0, [handle])
    seal = sink.staging / IDENTITY / "sealed" / "epoch=3f2a9c0d-000000"
    seal.write_text(content)
    with pytest.raises(LedgerError, match=str(seal)):
        sink.verdict(handle)


def test_the_form_of_a_seal(sink: FilesSink) -> None:
    handle = stage(sink, 0)
    settle(sink, 0, [handle])
    seal = sink.staging / IDENTITY / "sealed" / "epoch=3f2a9c0d-000000"
    assert seal.read_text() == f'{{"epoch":0,"transactions":["{handle.name}"],"version":1}}'


def test_a_lock_that_is_held_for_long_is_an_error(
    sink: FilesSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = stage(sink, 0)
    monkeypatch.setattr(folder, "LOCK_TIMEOUT", 0.05)
    with (
        folder.locked(sink.staging / IDENTITY, exclusive=True),
        pytest.raises(RetriableError, match="lock"),
    ):
        sink.commit(handle)
    settle(sink, 0, [handle])


CALLS = ("rename", "mkdir", "rmdir", "unlink", "fsync")


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Stop before the n-th call that changes the disk, and before all later ones."""
    made = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal made
            made += 1
            if made >= number:
                raise Crash
            return real(*arguments, **keywords)

        return call

    for function in CALLS:
        monkeypatch.setattr(os, function, dying(getattr(os, function)))


@pytest.mark.parametrize("columns", [(), ("g",)], ids=["plain", "partitioned"])
def test_a_crash_before_any_change_of_the_disk_is_recovered_from(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    for number in range(1, 1000):
        sink = make_sink(tmp_path / f"{number}" / "out", columns)
        settle(sink, 0, [stage(sink, 0)])
        handles = [stage(sink, 1, partition) for partition in range(2)]
        before = visible(sink)
        after = sorted([*before, *range(100, 105), *range(110, 115)])
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                settle(sink, 1, handles)
                finished = True
            except Crash:
                finished = False
        assert visible(sink) in (before, after)
        for handle in handles:
            assert sink.verdict(handle) in (Verdict.PENDING, Verdict.COMMITTED)
        settle(sink, 1, handles)
        assert (visible(sink), pending(sink)) == (after, [])
        assert left(sink) == only_seal(1)
        if finished:
            assert number > 20
            return
    pytest.fail("it never finished")


def test_a_crash_while_aborting_is_recovered_from(sink: FilesSink) -> None:
    for number in range(1, 100):
        handle = stage(sink, number)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                sink.abort(handle)
                finished = True
            except Crash:
                finished = False
        # It is there as a whole, or it is gone.
        is_pending = sink.verdict(handle) is Verdict.PENDING
        assert pending(sink) == ([handle] if is_pending else [])
        sink.abort(handle)
        assert pending(sink) == []
        assert sink.verdict(handle) is Verdict.ABORTED
        assert left(sink) == [IDENTITY]
        if finished:
            assert number > 2
            return
    pytest.fail("abort never finished")


def test_what_an_abort_left_that_was_never_repeated_goes_with_the_next_epoch(
    sink: FilesSink,
) -> None:
    handle = stage(sink, 0)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 2)
        with pytest.raises(Crash):
            sink.abort(handle)
    assert pending(sink) == []
    assert len(left(sink)) > 2
    settle(sink, 1, [stage(sink, 1)])
    assert left(sink) == only_seal(1)


# Several at once.


def test_threads_that_commit_and_publish_the_same_do_it_once(sink: FilesSink) -> None:
    with ThreadPoolExecutor(6) as pool:
        for epoch in range(25):
            handles = [stage(sink, epoch, partition) for partition in range(3)]
            orders = [handles, handles[::-1], handles, handles[1:] + handles[:1]]
            for done in [pool.submit(settle, sink, epoch, order) for order in orders]:
                done.result()
            assert pending(sink) == []
            assert left(sink) == only_seal(epoch)
    assert len(os.listdir(sink.output)) == 25
    assert len(visible(sink)) == len(set(visible(sink))) == 25 * 3 * 5


SETTLE = """
import sys
from assent.protocol.handle import Handle
from assent.sinks.files import FilesSink
sink = FilesSink(sys.argv[1])
epochs = [[Handle.parse(text) for text in line.split()] for line in open(sys.argv[2])]
sys.stdin.readline()
for epoch, handles in enumerate(epochs):
    for handle in handles:
        sink.commit(handle)
    sink.publish(epoch, handles)
"""


def test_processes_that_commit_and_publish_the_same_do_it_once(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    sink.check(numbers(0).schema)
    epochs = [[stage(sink, epoch, partition) for partition in range(2)] for epoch in range(30)]
    listing = tmp_path / "handles"
    listing.write_text("\n".join(" ".join(map(str, handles)) for handles in epochs))
    command = [sys.executable, "-c", SETTLE, str(sink.output), str(listing)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            _, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(os.listdir(sink.output)) == 30
    assert len(visible(sink)) == len(set(visible(sink))) == 30 * 2 * 5
    assert left(sink) == only_seal(29)


def listing(output: Path, partitioned: bool, stop: threading.Event, seen: list[str]) -> None:
    """List and read without pause; note whatever is not a whole number of whole epochs."""
    looks = 0
    while not stop.is_set() or looks < 3:
        looks += 1
        files = [Path(at, file) for at, _, names in os.walk(output) for file in names]
        by_epoch: dict[str, int] = {}
        for file in files:
            top = file.relative_to(output).parts[0]
            by_epoch[top] = by_epoch.get(top, 0) + 1
            if not (top.startswith("epoch=") and file.name.startswith("part-")):
                seen.append(f"strange: {file}")
        wanted = 9 if partitioned else 3
        seen += [f"{top}: {count}" for top, count in by_epoch.items() if count != wanted]
        rows = dataset.dataset(output, format="parquet", partitioning="hive").count_rows()
        if rows % 15:
            seen.append(f"{rows} rows")
    seen.append(f"looked {looks} times")


def test_a_reader_that_never_stops_listing_sees_whole_epochs_only(sink: FilesSink) -> None:
    stop, seen = threading.Event(), list[str]()
    reader = threading.Thread(
        target=listing, args=(sink.output, bool(sink.partition_columns), stop, seen)
    )
    reader.start()
    try:
        for epoch in range(40):
            handles = [stage(sink, epoch, partition) for partition in range(3)]
            loser = stage(sink, epoch, 0)
            settle(sink, epoch, handles)
            sink.abort(loser)
    finally:
        stop.set()
        reader.join()
    (summary,) = seen
    assert summary.startswith("looked")


def test_the_reader_of_that_test_notices_half_an_epoch(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    sink.check(numbers(0).schema)
    settle(sink, 0, [stage(sink, 0)])
    stop, seen = threading.Event(), list[str]()
    stop.set()
    listing(sink.output, False, stop, seen)
    assert "epoch=3f2a9c0d-000000: 1" in seen
    assert "5 rows" in seen


def test_begin_survives_that_others_remove_the_empty_folder(sink: FilesSink) -> None:
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            folder.remove_empty(sink.staging / IDENTITY / "open")

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for epoch in range(100):
            sink.abort(stage(sink, epoch))
    finally:
        stop.set()
        remover.join()
