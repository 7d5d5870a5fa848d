"""The ledger on a real disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from assent.ledger import local
from assent.ledger.identity import Owner
from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.ledger.location import canonical
from assent.ledger.store import AlreadyExistsError, MissingError
from assent.protocol.errors import (
    ConfigurationError,
    IdentityError,
    InDoubtError,
    LedgerError,
    RetriableError,
)
from assent.protocol.policy import Policy
from assent.protocol.record import Amendment, Author, Decision, RecordKey, Void
from assent.protocol.step import Step, When
from tests.query import Query


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The ledger's folder: below a checkpoint that Spark has made already."""
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint" / "_assent"


@pytest.fixture
def query(folder: Path) -> Query:
    return Query(LocalStore(str(folder)))


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the flushing out, where a test counts operations over many epochs."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class CountingStore(LocalStore):
    """Counts what is asked of the disk."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.count: Counter[str] = Counter()

    def create(self, name: str, content: bytes) -> None:
        self.count["create"] += 1
        super().create(name, content)

    def read(self, name: str) -> bytes:
        self.count["read"] += 1
        return super().read(name)

    def list(self, folder: str) -> list[str]:
        self.count["list"] += 1
        return super().list(folder)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def void(place: int, term: int = 0) -> Void:
    return Void(RecordKey(place, term), Author("run", f"{place}-{term}"), 0.0)


# Identity


def test_a_copied_checkpoint_is_refused_with_the_remedy(query: Query, folder: Path) -> None:
    query.run(query.start(), 0, [[1]])
    copied = folder.parent.with_name("copy")
    shutil.copytree(folder.parent, copied)
    other = Query(LocalStore(str(copied / "_assent")), checkpoint=query.checkpoint)
    with pytest.raises(IdentityError) as refused:
        other.start().plan()
    message = str(refused.value)
    assert str(folder) in message
    assert str(copied / "_assent") in message
    assert message.endswith(f"run: assent adopt file:{copied}")
    query.plan(query.start(), 1)


def test_another_query_and_other_sinks_are_refused(query: Query, folder: Path) -> None:
    query.run(query.start(), 0, [[1]])
    owner = Owner(query.ledger.location, "query", ("memory memory",))
    query.ledger.open(owner)
    with pytest.raises(IdentityError, match="belongs to query query, not to other"):
        query.ledger.open(replace(owner, query="other"))
    with pytest.raises(IdentityError, match=r"serves memory memory, .* memory a and memory b"):
        query.ledger.open(replace(owner, sinks=("memory a", "memory b")))


def test_every_way_to_write_a_place_is_the_same_place(query: Query, folder: Path) -> None:
    query.run(query.start(), 0, [[1]])
    link = folder.parent.with_name("link")
    link.symlink_to(folder.parent)
    space = folder.parent.with_name("with space")
    space.symlink_to(folder.parent)
    for text in (
        f"{folder}/",
        f"file:{folder}",
        f"file://{folder}",
        f"FILE:{folder}/",
        f"{link}/_assent",
        f"file:{link}/_assent",
        f"file:{folder.parent.parent}/with%20space/_assent",
        f"{folder.parent}/../checkpoint/_assent",
        os.path.relpath(folder),
    ):
        other = Query(LocalStore(text), checkpoint=query.checkpoint)
        assert other.ledger.location == f"file:{folder}"
        other.plan(other.start(), 1)


def test_the_names_of_s3_are_one_place_and_other_buckets_are_not() -> None:
    assert len({canonical(f"{name}://b/c") for name in ("s3", "s3a", "s3n", "S3A")}) == 1
    assert canonical("s3://b/c") != canonical("s3://b/d")
    assert canonical("hdfs://b/c") != canonical("s3://b/c")


def test_a_place_where_no_ledger_can_be_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'hdfs:'"):
        LocalStore("hdfs://namenode/checkpoint")


def test_an_identity_that_two_create_at_once_is_one(query: Query) -> None:
    owner = Owner(query.ledger.location, "query", ("memory memory",))
    found: list[str] = []
    together(8, lambda number: found.append(query.ledger.open(owner).identity))
    assert len(found) == 8
    assert len(set(found)) == 1


# Races


def together(count: int, act: Callable[[int], object]) -> None:
    """Run in several threads, released at the same instant; their errors are raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            act(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_of_several_creators_one_succeeds(folder: Path) -> None:
    store = LocalStore(str(folder))
    for turn in range(20):
        winners: list[int] = []

        def create(number: int, turn: int = turn, winners: list[int] = winners) -> None:
            try:
                store.create(f"records/{turn}", b"%d" % number)
                winners.append(number)
            except AlreadyExistsError:
                pass

        together(4, create)
        [winner] = winners
        assert store.read(f"records/{turn}") == b"%d" % winner
    assert len(files(folder)) == 20


def test_an_abort_and_a_decision_at_once_leave_one_record(query: Query) -> None:
    for place in range(20):
        outcomes: list[object] = []

        def write(number: int, place: int = place, outcomes: list[object] = outcomes) -> None:
            record = Void(RecordKey(place, 0), Author(f"run {number}", "x"), 0.0)
            outcomes.append(query.ledger.write(record))

        together(2, write)
        assert outcomes[0] == outcomes[1]


TAKER = """
import sys
from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.protocol.record import Author, Decision, RecordKey

ledger = Ledger(LocalStore(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(sys.argv[3])):
    term = ledger.take(f"{sys.argv[2]}-{turn}").term
    key, author = RecordKey(term.first_place, term.number), Author(term.author.run, "decision")
    standing = ledger.write(Decision(key, author, key.place, "", None, 0.0, 0, ()))
    print(term.number, int(standing.author == author), flush=True)
"""


def test_eight_processes_that_take_terms_at_once_get_a_consistent_chain(folder: Path) -> None:
    turns, environment = 4, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TAKER, str(folder), str(number), str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(8)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        output = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * 8
    lines = [line.split() for text in output for line in text.splitlines()]
    taken = {int(number): bool(int(decided)) for number, decided in lines}
    assert sorted(taken) == list(range(8 * turns))
    assert len(lines) == len(taken)

    ledger = Ledger(LocalStore(str(folder)))
    terms = [ledger.read_term(number) for number in sorted(taken)]
    keys = ledger.record_keys()
    decided = [key for key in keys if isinstance(ledger.read(key), Decision)]
    assert len({key.place for key in decided}) == len(decided)
    assert {key.term for key in decided} == {number for number in taken if taken[number]}
    for term, following in pairwise(terms):
        mine = [key.place for key in keys if key.term == term.number]
        assert isinstance(ledger.read(RecordKey(mine[-1], term.number)), Void)
        assert following.first_place == mine[-1]
        before = [key for key in decided if key.term <= term.number]
        assert list(following.tail) == before
    assert not list((folder / ".new").iterdir())


def test_a_creation_survives_the_cleaning_up_of_another_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers start at once: one removes what it takes for a leftover of a dead one."""
    store, other, link = LocalStore(str(folder)), LocalStore(str(folder)), os.link
    cleaned = 0

    def clean_first(source: Any, target: Any) -> None:
        nonlocal cleaned
        if cleaned < 3:
            cleaned += 1
            other.recover()
        link(source, target)

    monkeypatch.setattr(os, "link", clean_first)
    store.create("terms/one.json", b"content")
    assert cleaned == 3
    assert files(folder) == ["terms/one.json"]
    assert store.read("terms/one.json") == b"content"


# Cost and retention


def test_retention_is_bounded_and_never_takes_what_is_unfinished(
    folder: Path, unflushed: None
) -> None:
    query = Query(LocalStore(str(folder)), policy=Policy(retained_epochs=10))
    coordinator = query.start()
    for epoch in range(60):
        query.run(coordinator, epoch, [[epoch]])
        kept = [decision.epoch for decision in query.decisions()]
        assert kept == list(range(kept[0], epoch + 1))
        assert min(10, epoch + 1) <= len(kept) <= 10 + 10 // 4 + 1


def test_retention_of_one_epoch_works(folder: Path, unflushed: None) -> None:
    query = Query(LocalStore(str(folder)), policy=Policy(retained_epochs=1))
    for epoch in range(10):
        query.run(query.start(), epoch, [[epoch]])
    query.die(When.AFTER, Step.DECIDE, 10, [[10], [11]])
    query.run(query.start(), 10, [[10], [11]])
    query.run(query.start(), 11, [[12]])
    assert query.rows() == sorted(range(13), key=str)


def test_a_long_run_keeps_few_files_and_reads_few_records_per_epoch(
    folder: Path, unflushed: None
) -> None:
    store = CountingStore(str(folder))
    query = Query(store, policy=Policy(retained_epochs=20))
    coordinator = query.start()
    costs: list[Counter[str]] = []
    most = 0
    for epoch in range(5_000):
        store.count.clear()
        query.run(coordinator, epoch, [[]])  # the ledger is measured, so no task has a row
        costs.append(store.count.copy())
        query.checkpoint.offsets.pop(epoch - 100, None)  # as Spark does
        if epoch % 100 == 99:
            most = max(most, len(files(folder)))
    assert most <= 20 + 20 // 4 + 1 + 2  # records, and identity and term
    for operation in ("create", "read", "list"):
        early = max(cost[operation] for cost in costs[:100])
        assert max(cost[operation] for cost in costs) == early
    assert all(cost["create"] == 1 for cost in costs[1:])  # one durable write per epoch
    assert max(cost["read"] for cost in costs[1:]) <= 6


def test_opening_a_long_history_reads_as_much_as_opening_a_short_one(
    folder: Path, unflushed: None
) -> None:
    cost = []
    query = Query(LocalStore(str(folder)), policy=Policy(retained_epochs=20))
    done = 0
    for epochs in (31, 301):  # neither of them where old records are deleted
        coordinator = query.start()
        for epoch in range(done, epochs):
            query.run(coordinator, epoch, [[epoch]])
        done = epochs
        store = CountingStore(str(folder))
        opened = Query(store, checkpoint=query.checkpoint)
        opened.plan(opened.start(), epochs)
        cost.append(store.count)
    assert cost[0] == cost[1]


# The disk


def test_leftovers_of_interrupted_creations_are_removed(query: Query, folder: Path) -> None:
    query.run(query.start(), 0, [[1]])
    before = files(folder)
    leftovers = [".new/a1b2c3d4", ".new/00ff00ff"]
    for name in leftovers:
        (folder / name).write_bytes(b"half a rec")
    assert len(query.decisions()) == 1  # nobody takes them for records
    query.plan(query.start(), 1)
    assert set(before) < set(files(folder))
    assert not set(leftovers) & set(files(folder))


def test_a_record_is_flushed_before_it_appears_and_its_folder_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of a first creation: content, name, and every folder on the way."""
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "mkdir")}

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        paths = [folder.parent, *folder.parent.rglob("*")]
        [path] = [path for path in paths if os.path.samestat(path.stat(), found)]
        done.append(f"flush {'file' if path.is_file() else path.name}")
        real["fsync"](descriptor)

    def link(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"content"
        done.append("link")
        real["link"](source, target)

    def mkdir(path: Any, *arguments: Any) -> None:
        done.append(f"make {Path(path).name}")
        real["mkdir"](path, *arguments)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "mkdir", mkdir)
    store = LocalStore(str(folder))
    store.create("records/one", b"content")
    assert done == [
        "make _assent",
        "flush checkpoint",
        "make records",
        "flush _assent",
        "make .new",
        "flush _assent",
        "flush file",
        "link",
        "flush records",
    ]
    done.clear()
    with pytest.raises(AlreadyExistsError):  # its maker may have died before the last flush
        store.create("records/one", b"content")
    assert done == ["flush file", "link", "flush records"]
    done.clear()
    store.recover()
    assert sorted(done) == ["flush _assent", "flush records"]


class FullDisk:
    """What the store writes goes to a device without room, while `full` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False

        def create(path: Path, mode: str) -> IO[Any]:
            if self.full:
                path.touch(exist_ok=False)
            return open("/dev/full" if self.full else path, "wb" if self.full else mode)

        monkeypatch.setattr(local, "open", create, raising=False)


def test_a_full_disk_decides_nothing_and_says_so(
    query: Query, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    coordinator = query.start()
    query.run(coordinator, 0, [[0]])
    votes = query.write(query.plan(coordinator, 1), 1, [[1], [2]])
    before = files(folder)
    disk.full = True
    with pytest.raises(InDoubtError, match="No space left on device") as stopped:
        coordinator.commit(votes, 1)
    assert str(folder) in str(stopped.value)
    assert query.rows() == [0]
    assert files(folder) == before
    disk.full = False
    query.run(query.start(), 1, [[1], [2]])
    assert query.rows() == [0, 1, 2]
    assert query.open() == []


def test_a_full_disk_at_the_start_is_an_error_that_names_the_file(
    query: Query, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    for name in ("identities/00000000.json", "terms/00000000.json"):
        disk.full = True
        with pytest.raises(RetriableError, match="No space left on device") as stopped:
            query.plan(query.start(), 0)
        assert f"{folder}/{name}" in str(stopped.value)
        disk.full = False
        query.ledger.open(Owner(query.ledger.location, "query", ("memory memory",)))
    query.run(query.start(), 0, [[1]])
    assert query.rows() == [1]


def test_a_place_that_cannot_be_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = LocalStore(str(tmp_path / "file" / "_assent"))
    for act in (
        lambda: store.create("records/one", b""),
        lambda: store.read("records/one"),
        lambda: store.list("records"),
    ):
        with pytest.raises(RetriableError, match=f"{tmp_path}/file/_assent/records"):
            act()


def test_a_missing_file_is_missing_and_an_empty_ledger_is_empty(folder: Path) -> None:
    ledger = Ledger(LocalStore(str(folder)))
    assert ledger.find() is None
    assert ledger.newest_term() is None
    assert ledger.record_keys() == []
    assert ledger.find_record(RecordKey(0, 0)) is None
    with pytest.raises(MissingError):
        LocalStore(str(folder)).read("identities/00000000.json")
    assert not folder.exists()  # looking creates nothing


# Damage


def _torn(query: Query) -> None:
    """A ledger with every kind of record in it."""
    query.die(When.AFTER, Step.DECIDE, 0, [[1], [2]])
    query.server.expire(query.server.open()[:1])
    coordinator = query.start()
    query.run_up_to_commit_log(coordinator, 0, [[1], [2]])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 512, id="zeros"),
        pytest.param(b"\xff\xfe\xfd", id="no text"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"type":"package","version":1}', id="foreign"),
        pytest.param(b'{"kind":"decision","version":2}', id="newer"),
        pytest.param(b'{"kind":"decision","version":"1"}', id="version as text"),
        pytest.param(b'{"kind":"decision","version":0}', id="version 0"),
        pytest.param(b'{"kind":"elegy","version":1,"place":0,"term":0}', id="another kind"),
        pytest.param(b'{"kind":"void","version":1,"place":1e999,"term":0}', id="infinite"),
        pytest.param(b"[" * 100_000, id="too deep"),
    ],
)
def test_a_file_that_is_not_ours_is_an_error_that_names_it(
    query: Query, folder: Path, content: bytes
) -> None:
    _torn(query)
    for name in _needed(folder):
        path = folder / name
        good = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(LedgerError, match=name):
            query.start().plan()
        path.write_bytes(good)


def _needed(folder: Path) -> list[str]:
    """What the next start reads: not the term before the newest, nor an older void."""
    return [
        "identities/00000000.json",
        "records/000000000000-00000000.json",
        "records/000000000001-00000001.json",
        "terms/00000001.json",
    ]


def test_a_record_cut_short_anywhere_is_an_error_that_names_it(query: Query, folder: Path) -> None:
    _torn(query)
    for name in _needed(folder):
        path = folder / name
        good = path.read_bytes()
        for length in {*range(0, len(good), 37), len(good) - 1}:
            path.write_bytes(good[:length])
            with pytest.raises(LedgerError, match=name):
                query.start().plan()
        path.write_bytes(good)
    query.start().plan()


@pytest.mark.parametrize(
    "name",
    [
        "records/notes.txt",
        "records/000000000001.json",
        "records/000000000001-00000000.json.bak",
        "records/1-0.json",
        "records/sub-folder/",
        "terms/notes.txt",
        "terms/1.json",
    ],
)
def test_an_unexpected_file_is_an_error_that_names_it(
    query: Query, folder: Path, name: str
) -> None:
    query.run(query.start(), 0, [[1]])
    if name.endswith("/"):
        (folder / name).mkdir()
    else:
        (folder / name).write_text("{}")
    with pytest.raises(LedgerError, match=name.rstrip("/")):
        query.start().plan()


def test_a_record_under_another_ones_name_is_an_error_that_names_it(
    query: Query, folder: Path
) -> None:
    coordinator = query.start()
    for epoch in range(2):
        query.run(coordinator, epoch, [[epoch]])
    shutil.copy(
        folder / "records/000000000000-00000000.json", folder / "records/000000000001-00000000.json"
    )
    with pytest.raises(LedgerError, match=r"000000000001-00000000\.json holds .* place 0, term 0"):
        query.start().plan()


def test_a_record_that_is_referred_to_and_missing_is_an_error_that_names_it(
    query: Query, folder: Path
) -> None:
    _torn(query)
    query.plan(query.start(), 0)  # its term refers to records of earlier ones
    (folder / "records/000000000000-00000000.json").unlink()
    with pytest.raises(LedgerError, match=r"000000000000-00000000\.json is missing"):
        query.start().plan()


def test_every_kind_of_record_reads_back_as_it_was_written(query: Query) -> None:
    _torn(query)
    kinds = set()
    for record in query.records():
        kinds.add(type(record))
        assert query.ledger.find_record(record.key) == record
    assert kinds == {Decision, Amendment, Void}
