"""The files sink before the first row: destinations, options, modes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from assent.protocol.errors import (
    ConfigurationError,
)
from assent.protocol.name import nonce
from assent.sinks import folder
from assent.sinks.files import FilesSink
from assent.sinks.option import read_options
from tests.files_kit import (
    left,
    numbers,
    only_seal,
    settle,
    stage,
    visible,
)

# Destinations.


def test_a_path_and_its_other_spellings_are_one_target(tmp_path: Path) -> None:
    (tmp_path / "real out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real out")
    spellings: list[str | Path] = [
        tmp_path / "real out",
        f"{tmp_path}/link/",
        f"file:{tmp_path}/real%20out",
        f"file://{tmp_path}/link",
        f"file://localhost{tmp_path}/real%20out",
        f"{tmp_path}/x/../real out",
    ]
    targets = {FilesSink(spelling).target for spelling in spellings}
    assert targets == {os.path.realpath(tmp_path / "real out")}


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/out",
        "s3a://user:swordfish@bucket/out",
        "hdfs://name:8020/out",
        "gs://bucket/out",
        "dbfs:/out",
        "https://server/out",
        "abfss://container@account/out",
        "file://server/out",
    ],
)
def test_other_destinations_are_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="local disk") as caught:
        FilesSink(path)
    assert f"option path begins with {path.partition(':')[0]}:" in str(caught.value)
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize(("given", "words"), [("/", "below the root"), ("file:out", "file:///")])
def test_paths_that_name_no_folder_are_refused(given: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        FilesSink(given)


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("nfs4", True), ("cifs", True), ("fuse.s3fs", True), ("fuse", True), ("ext4", False)],
)
def test_network_file_systems_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "a share"
    shared.mkdir()
    point = str(shared).replace(" ", "\\040")
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"23 22 0:40 / {point} rw shared:1 - {kind} server:/x rw\n"
    )
    monkeypatch.setattr(folder, "_MOUNTS", mounts)
    sink = FilesSink(shared / "out")
    if not refused:
        sink.check(numbers(0).schema)
        return
    with pytest.raises(ConfigurationError, match=f"file system of type {kind}"):
        sink.check(numbers(0).schema)
    assert not sink.output.exists()
    FilesSink(tmp_path / "out").check(numbers(0).schema)


@pytest.mark.parametrize("system_tells", [True, False])
def test_a_staging_folder_on_another_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_tells: bool
) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to try it on")

    def looks_for_the_name_first(source: Path, destination: Path) -> None:
        raise FileNotFoundError

    if not system_tells:
        monkeypatch.setattr(os, "rename", looks_for_the_name_first)
    staging = other / f"assent-test-{nonce()}"
    try:
        sink = FilesSink(tmp_path / "out", staging_path=staging)
        with pytest.raises(ConfigurationError, match=r"option stagingPath.*same file system"):
            sink.check(numbers(0).schema)
    finally:
        folder.remove_tree(staging)


def test_a_second_mount_of_one_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crosses(source: Path, destination: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", crosses)
    with pytest.raises(ConfigurationError, match=r"option stagingPath.*same file system"):
        FilesSink(tmp_path / "out").check(numbers(0).schema)


@pytest.mark.parametrize("staging", ["out", "out/staging"])
def test_a_staging_folder_inside_the_output_is_refused(tmp_path: Path, staging: str) -> None:
    with pytest.raises(ConfigurationError, match="option stagingPath"):
        FilesSink(tmp_path / "out", staging_path=tmp_path / staging)


def test_two_sinks_may_share_a_staging_path(tmp_path: Path) -> None:
    sinks = [FilesSink(tmp_path / at, staging_path=tmp_path / "staging") for at in ("a", "b")]
    assert sinks[0].staging != sinks[1].staging
    for sink in sinks:
        sink.check(numbers(0).schema)
        settle(sink, 0, [stage(sink, 0)])
        assert visible(sink) == [0, 1, 2, 3, 4]
        assert left(sink) == only_seal(0)


def test_a_file_in_the_place_of_the_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for path in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(ConfigurationError, match=r"option path: .* is a file"):
            FilesSink(path).check(numbers(0).schema)


# Options.


def from_options(tmp_path: Path, **given: str) -> FilesSink:
    values = read_options(
        {"path": str(tmp_path / "out"), **given}, FilesSink.OPTIONS, sink="assent-files"
    )
    return FilesSink.from_options(values)


def test_options_become_settings(tmp_path: Path) -> None:
    sink = from_options(
        tmp_path,
        fileformat="CSV",
        partitioncolumns="a, b",
        compression="gzip",
        stagingpath=str(tmp_path / "staging"),
        header="true",
        sep="\\t",
        snapshots="true",
        epochcolumn="batch",
    )
    assert sink.file_format.name == "csv"
    assert sink.file_format.extension == ".csv.gz"
    assert (sink.file_format.header, sink.file_format.separator) == (True, "\t")
    assert sink.partition_columns == ("a", "b")
    assert sink.staging.parent == tmp_path / "staging"
    assert (sink.snapshots, sink.epoch_column) == (True, "batch")


def test_defaults_of_options_and_of_the_constructor_agree(tmp_path: Path) -> None:
    assert vars(from_options(tmp_path)) == vars(FilesSink(tmp_path / "out"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fileformat": "orc"}, "option fileFormat is 'orc'"),
        ({"fileformat": "csv", "compression": "snappy"}, "option compression is 'snappy', which"),
        ({"compression": "bzip2"}, "which parquet files do not have; expected one of snappy"),
        ({"sep": "ab"}, "option sep is 'ab'"),
        ({"sep": '"'}, "not the quote"),
        ({"epochcolumn": "_x"}, "option epochColumn is '_x'"),
        ({"partitionby": "a"}, "did you mean partitionColumns"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        from_options(tmp_path, **given)


def test_a_bad_format_is_refused_by_the_constructor_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="option fileFormat is 'orc'; expected one of"):
        FilesSink(tmp_path / "out", "orc")


def test_the_epoch_column_can_be_renamed(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out", epoch_column="batch")
    sink.check(pa.schema([("n", pa.int64()), ("epoch", pa.int64())]))
    settle(sink, 0, [stage(sink, 0)])
    assert os.listdir(sink.output) == ["batch=3f2a9c0d-000000"]


def test_complete_mode_needs_snapshots(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set option snapshots to true"):
        FilesSink(tmp_path / "out").check(numbers(0).schema, overwrite=True)
    assert os.listdir(tmp_path) == []
    FilesSink(tmp_path / "out", snapshots=True).check(numbers(0).schema, overwrite=True)
