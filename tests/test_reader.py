from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assent.testing.boundaries import DEFAULT_BOUNDARIES
from assent.testing.pageviews import page_views
from assent.testing.reader import Count, ListingReader, count

BOUNDARIES = ((3, 3), (5, 6))


def write(folder: Path, partition: int, first: int, end: int, name: str = "part") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{partition}-{first}.parquet"
    pq.write_table(pa.Table.from_batches([page_views(0, partition, first, end)]), file)
    return file


def epoch_folder(folder: Path, epoch: int) -> Path:
    return folder / f"epoch=0123abcd-{epoch:06d}"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A folder with two whole epochs."""
    folder = tmp_path / "output"
    write(epoch_folder(folder, 0), 0, 0, 3)
    write(epoch_folder(folder, 0), 1, 0, 3)
    write(epoch_folder(folder, 1), 0, 3, 5)
    write(epoch_folder(folder, 1), 1, 3, 6)
    return folder


@pytest.fixture
def watch(output: Path) -> ListingReader:
    """A reader that has seen the two epochs and nothing amiss."""
    reader = ListingReader(output, BOUNDARIES)
    reader.look()
    assert reader.violations == []
    return reader


def test_the_default_topic_has_20005_page_views(tmp_path: Path) -> None:
    assert count(tmp_path, DEFAULT_BOUNDARIES) == Count(
        0, 0, lost=20_005, duplicated=0, unexpected=0
    )


def test_whole_epochs_are_exact(output: Path) -> None:
    found = count(output, BOUNDARIES)
    assert found == Count(rows=11, distinct=11, lost=0, duplicated=0, unexpected=0)
    assert found.exact


def test_a_loss_is_found(output: Path) -> None:
    (epoch_folder(output, 1) / "part-1-3.parquet").unlink()
    found = count(output, BOUNDARIES)
    assert (found.lost, found.duplicated, found.exact) == (3, 0, False)


def test_a_duplicate_is_found(output: Path) -> None:
    write(epoch_folder(output, 2), 1, 3, 6)
    found = count(output, BOUNDARIES)
    assert (found.rows, found.lost, found.duplicated, found.exact) == (14, 0, 3, False)


def test_a_row_that_nobody_sent_is_found(output: Path) -> None:
    write(epoch_folder(output, 2), 1, 6, 8)
    found = count(output, BOUNDARIES)
    assert (found.unexpected, found.exact) == (2, False)


def test_what_readers_pass_over_is_not_counted(output: Path) -> None:
    write(output / "_staged", 0, 0, 3)
    write(output / ".hidden", 0, 0, 3)
    write(epoch_folder(output, 0), 0, 0, 3, name="_part")
    assert count(output, BOUNDARIES).exact


def test_rows_of_a_column_partitioned_output_are_counted(tmp_path: Path) -> None:
    write(epoch_folder(tmp_path, 0) / "app=atlas", 0, 0, 3)
    write(epoch_folder(tmp_path, 0) / "app=beacon", 1, 0, 3)
    assert count(tmp_path, ((3, 3),)).exact


def test_a_quiet_folder_gives_no_violation(output: Path) -> None:
    with ListingReader(output, BOUNDARIES) as reader:
        while reader.listings < 3:
            time.sleep(0.001)
        write(output / "_staged", 0, 0, 3)
    assert reader.violations == []


def test_an_epoch_that_appears_whole_is_no_violation(output: Path, watch: ListingReader) -> None:
    reader = ListingReader(output, (*BOUNDARIES, (7, 6)))
    reader.look()
    write(output / "_staged", 0, 5, 7)
    (output / "_staged").rename(epoch_folder(output, 2))
    reader.look()
    assert reader.violations == []


def test_a_torn_epoch_is_a_violation(output: Path) -> None:
    whole = write(epoch_folder(output, 1), 1, 3, 6)
    aside = whole.rename(output.parent / whole.name)
    reader = ListingReader(output, BOUNDARIES)
    reader.look()
    aside.rename(whole)
    reader.look()
    torn, changed = reader.violations
    assert "not its whole epoch" in torn
    assert "had 2 rows and now has 5" in changed


def test_a_torn_epoch_is_seen_without_knowing_its_rows(output: Path) -> None:
    reader = ListingReader(output)
    reader.look()
    write(epoch_folder(output, 1), 0, 5, 6)
    reader.look()
    assert len(reader.violations) == 1


def test_an_epoch_that_goes_is_a_violation(output: Path, watch: ListingReader) -> None:
    epoch_folder(output, 1).rename(output / "_gone")
    watch.look()
    assert ["is gone" in violation for violation in watch.violations] == [True]


def test_rewritten_rows_are_a_violation(output: Path, watch: ListingReader) -> None:
    write(epoch_folder(output, 1), 0, 3, 5).unlink()
    write(epoch_folder(output, 1), 0, 2, 4)
    watch.look()
    assert any("or others" in violation for violation in watch.violations)


@pytest.mark.parametrize(
    "name", ["part-0.parquet", "staged/part-0.parquet", "epoch=7/part-0.parquet"]
)
def test_a_file_outside_of_an_epoch_is_a_violation(
    output: Path, watch: ListingReader, name: str
) -> None:
    file = output / name
    file.parent.mkdir(exist_ok=True)
    write(output, 0, 0, 3).rename(file)
    watch.look()
    assert ["outside" in violation for violation in watch.violations] == [True]


def test_a_partial_file_is_a_violation(output: Path, watch: ListingReader) -> None:
    file = write(epoch_folder(output, 1), 0, 3, 5)
    file.write_bytes(file.read_bytes()[:-10])
    watch.look()
    assert any("cannot be read" in violation for violation in watch.violations)
