"""The command line, on a ledger on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assent.ledger.ledger import FOLDER, Ledger
from assent.ledger.local import LocalStore
from assent.ops import cli
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import AssentError, InDoubtError
from assent.protocol.handle import Handle
from assent.protocol.participant import Participant
from assent.spark.checkpoint import SparkCheckpoint
from assent.testing.memory import MemoryServer, MemorySink
from tests.query import batches


class Query:
    """A checkpoint on disk as Spark leaves it, and a store in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = MemoryServer()
        self.sink = MemorySink(self.server)
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"3f60b7a3"}')
        self.coordinator = self.process()

    def process(self) -> Coordinator:
        return Coordinator(
            Ledger(LocalStore(str(self.folder / FOLDER))),
            [self.sink],
            SparkCheckpoint(LocalStore(str(self.folder))),
        )

    def run(self, epoch: int, *, finish: bool = True) -> list[Handle]:
        (self.folder / "offsets" / str(epoch)).write_text(f"v1\n{epoch}")
        assignment = self.coordinator.plan()
        votes = [
            Participant([self.sink], assignment).vote(epoch, task, 0, batches([epoch * 10 + task]))
            for task in range(2)
        ]
        self.coordinator.commit(votes, epoch)
        if finish:
            (self.folder / "commits" / str(epoch)).write_text("v1")
        return [prepared.handle for vote in votes for prepared in vote.share.prepared]


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint")


def call(*arguments: object) -> str:
    """What the command prints; an error of ours is raised."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AssentError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_help_names_every_command() -> None:
    output = call("--help")
    for command in ("show", "settle", "adopt", "demo"):
        assert command in output


def test_show(query: Query) -> None:
    query.run(0)
    handles = query.run(1, finish=False)
    output = call("show", query.folder)
    assert "complete" in output
    assert "not finished" in output
    for handle in handles:
        assert str(handle) in output
    content = json.loads(call("show", query.folder, "--json"))
    assert [epoch["epoch"] for epoch in content["epochs"]] == [0, 1]
    assert content["unfinished"] == [{"epoch": 1, "handles": [str(handle) for handle in handles]}]
    assert content["epochs"][0]["statistics"]["rows"] == 2


def test_show_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(AssentError, match="there is no ledger"):
        call("show", tmp_path)


def test_settle_what_the_store_has_forgotten(query: Query) -> None:
    query.run(0)
    handles = query.run(1, finish=False)
    forgotten = handles[0]

    def fail(operation: str) -> None:
        if operation == "commit":
            raise ConnectionError("who?")

    query.sink.forgotten.add(forgotten.name)
    query.sink.interfere = fail
    with pytest.raises(InDoubtError, match="assent settle"):
        query.process().plan()
    call("settle", query.folder, str(forgotten), "committed", "--reason", "seen in the store")
    query.process().plan()
    content = json.loads(call("show", query.folder, "--json"))
    assert content["unfinished"] != []  # until Spark has written its commit log


def test_settle_refuses_what_it_does_not_know(query: Query) -> None:
    query.run(0)
    with pytest.raises(AssentError, match="in no unfinished epoch"):
        call("settle", query.folder, "memory/1:other", "lost")
    with pytest.raises(AssentError, match="not a handle"):
        call("settle", query.folder, "nonsense", "lost")
    with pytest.raises(AssentError, match="none of committed, aborted, lost"):
        call("settle", query.folder, "memory/1:other", "perhaps")


def test_adopt_a_copied_checkpoint(query: Query, tmp_path: Path) -> None:
    query.run(0)
    shutil.copytree(query.folder, tmp_path / "copy")
    copy = Query.__new__(Query)
    copy.folder, copy.server, copy.sink = tmp_path / "copy", query.server, query.sink
    copy.coordinator = copy.process()
    with pytest.raises(AssentError, match="assent adopt"):
        copy.run(1)
    before = copy.coordinator.ledger.find()
    call("adopt", copy.folder)
    after = copy.coordinator.ledger.find()
    assert before is not None
    assert after is not None
    assert after.identity != before.identity
    copy.run(1)
    query.run(1)
    assert sorted(map(str, query.server.rows())) == ["0", "1", "10", "10", "11", "11"]


def test_adopt_refuses_while_something_is_pending(query: Query, tmp_path: Path) -> None:
    query.run(0, finish=False)
    shutil.copytree(query.folder, tmp_path / "copy")
    with pytest.raises(AssentError, match="is not finished"):
        call("adopt", tmp_path / "copy")


def test_an_adopted_ledger_remembers_how_far_the_epochs_had_come(query: Query) -> None:
    query.run(0)
    query.run(1)
    call("adopt", query.folder, "--sink", "memory memory")
    for log in ("offsets", "commits"):
        (query.folder / log / "1").unlink()
    with pytest.raises(AssentError, match="epoch 1 is decided"):
        query.process().plan()
