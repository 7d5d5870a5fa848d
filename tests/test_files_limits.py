"""Files: a full disk, and rows at the limits; an error that says so, or it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from assent.ledger.local import LocalStore
from assent.protocol.errors import ConfigurationError, InDoubtError, RetriableError
from assent.protocol.policy import Policy
from assent.protocol.step import Moment, Step, When
from assent.sinks.files import FilesSink
from assent.testing.disk import SmallDisk
from assent.testing.query import BatchQuery
from tests.disk import LimitedDisk
from tests.files_kit import left, numbers, open_files, visible
from tests.limits import Obstacle, texts


@pytest.fixture(params=["limit", "mount"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LimitedDisk | SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "limit":
        yield LimitedDisk(folder)
        return
    with SmallDisk(folder, "4m") as mounted:
        if not mounted.mounted:
            pytest.skip(
                f"no file system can be mounted here ({mounted.refusal}); the other way is tested"
            )
        yield mounted


class Stage:
    """A query whose output and ledger are below a folder."""

    def __init__(self, folder: Path, ledger: Path | None = None, **more: str) -> None:
        self.sink = FilesSink(folder / "out", **more)  # type: ignore[arg-type]
        self.sink.check(numbers(0).schema)
        store = LocalStore(str((ledger or folder) / "_assent"))
        policy = Policy(commit_timeout=0.2)
        self.query = BatchQuery(lambda: self.sink, store, policy)

    def obstacle(self) -> Obstacle:
        return Obstacle(self.query, lambda: visible(self.sink), self.pending, [[numbers(0)]])

    def pending(self) -> list[str]:
        return [path for path in left(self.sink) if path.endswith(".parquet")]


TASKS = [[numbers(10)], [numbers(20)]]
AFTER = [*range(5), *range(10, 15), *range(20, 25)]


def test_a_disk_that_is_full_while_a_task_writes(
    disk: LimitedDisk | SmallDisk, tmp_path: Path
) -> None:
    stage = Stage(disk.folder, ledger=tmp_path)
    obstacle = stage.obstacle()
    assignment = stage.query.plan(stage.query.start(), 1)
    with disk.full(), pytest.raises(RetriableError, match=disk.reason) as refused:
        stage.query.write(assignment, 1, TASKS)
    assert f"cannot be written to {stage.sink.output}" in str(refused.value)
    assert open_files(disk.folder) == []
    assert visible(stage.sink) == [*range(5)]
    obstacle.goes_on(TASKS, AFTER)


def test_a_disk_that_is_full_when_the_epoch_is_published(
    disk: LimitedDisk | SmallDisk, tmp_path: Path
) -> None:
    """The epoch is decided: it appears, as a whole, as soon as there is room."""
    stage = Stage(disk.folder, ledger=tmp_path)
    obstacle = stage.obstacle()
    with ExitStack() as room:

        def trace(moment: Moment) -> None:
            if (moment.when, moment.step) == (When.AFTER, Step.DECIDE):
                room.enter_context(disk.full())

        coordinator = stage.query.start(trace)
        votes = stage.query.write(stage.query.plan(coordinator, 1), 1, TASKS)
        with pytest.raises(RetriableError, match=disk.reason):
            coordinator.commit(votes, 1)
        assert visible(stage.sink) == [*range(5)]
    obstacle.goes_on(TASKS, AFTER)


def test_a_disk_that_is_full_when_the_epoch_is_decided(
    disk: LimitedDisk | SmallDisk, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, ledger=disk.folder)
    obstacle = stage.obstacle()
    coordinator = stage.query.start()
    votes = stage.query.write(stage.query.plan(coordinator, 1), 1, TASKS)
    with disk.full(), pytest.raises(InDoubtError, match=disk.reason) as refused:
        coordinator.commit(votes, 1)
    assert "Nothing was committed" in str(refused.value)
    assert visible(stage.sink) == [*range(5)]
    obstacle.goes_on(TASKS, AFTER)


def test_a_disk_that_is_full_at_the_start(disk: LimitedDisk | SmallDisk) -> None:
    stage = Stage(disk.folder)
    with disk.full(), pytest.raises(RetriableError, match=disk.reason):
        stage.query.plan(stage.query.start(), 0)
    stage.query.run(stage.query.start(), 0, [[numbers(0)]])
    assert visible(stage.sink) == [*range(5)]


# Rows.

ODD = (b"", None, b"a\0b", b"\xc3\x28", b"x" * 1_000_000)


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_odd_texts_are_kept_byte_for_byte(tmp_path: Path, file_format: str) -> None:
    sink = FilesSink(tmp_path / "out", file_format=file_format)
    rows = pa.record_batch({"n": [*range(len(ODD))], "g": texts(*ODD)})
    sink.check(rows.schema)
    query = BatchQuery(lambda: sink)
    query.run(query.start(), 0, [[rows], [rows.slice(0, 0)], []])
    (file,) = sink.output.rglob(f"*.{file_format}")
    if file_format == "parquet":
        read = parquet.read_table(pa.BufferReader(file.read_bytes()))["g"].combine_chunks()
        assert read.cast(pa.binary()).to_pylist() == [*ODD]
    else:
        lines = file.read_bytes().split(b"\n")[:-1]
        assert [line.partition(b",")[2] for line in lines] == [
            b"" if text is None else b'"' + text + b'"' for text in ODD
        ]


def test_texts_that_are_none_are_refused_as_json(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out", file_format="json")
    good = pa.record_batch({"n": [1], "g": ["a"]})
    sink.check(good.schema)

    def seen() -> list[str]:
        return sorted(file.read_text() for file in sink.output.rglob("*.json"))

    query = BatchQuery(lambda: sink)
    obstacle = Obstacle(query, seen, lambda: [], [[good]])
    bad = pa.record_batch({"n": [2], "g": texts(b"\xc3\x28")})
    obstacle.refuses([[good], [bad]], "column 'g' holds a text that is not UTF-8")
    obstacle.goes_on([[good]], ['{"n":1,"g":"a"}\n'] * 2)


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_ten_thousand_columns(tmp_path: Path, file_format: str) -> None:
    sink = FilesSink(tmp_path / "out", file_format=file_format, header=True)
    wide = pa.record_batch({f"column {number}": np.arange(2) for number in range(10_000)})
    sink.check(wide.schema)
    query = BatchQuery(lambda: sink)
    query.run(query.start(), 0, [[wide]])
    (file,) = sink.output.rglob(f"*.{file_format}")
    content = file.read_bytes()
    if file_format == "parquet":
        assert parquet.read_table(pa.BufferReader(content)).shape == (2, 10_000)
    else:
        assert content.count(b"column 9999") == {"json": 2, "csv": 1}[file_format]


def test_no_columns_at_all(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    with pytest.raises(ConfigurationError, match="no column"):
        sink.check(pa.schema([]))
