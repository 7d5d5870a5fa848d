"""The kit can fail: sinks that break one promise each, and the tests that find them."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from assent import Handle, Pending, TransactionName, Verdict
from assent.protocol.sink import Sink
from assent.testing.conformance import SinkConformance
from assent.testing.moments import MOMENTS
from examples.custom_sink import LinesSink
from tests.test_conformance import LinesSubject


class ShowsWhatIsPrepared(LinesSink):
    def pre_commit(self, transaction: IO[str]) -> Handle:
        handle = super().pre_commit(transaction)
        shutil.copy(self.open / handle.name, self.done / handle.name)
        return handle


class CommitsTwice(LinesSink):
    def commit(self, handle: Handle) -> None:
        if (self.open / handle.name).exists():
            super().commit(handle)
        else:
            (self.done / f"{handle.name}-again").write_bytes((self.done / handle.name).read_bytes())


class ForgetsToCommit(LinesSink):
    def commit(self, handle: Handle) -> None:
        pass


class AbortsNothing(LinesSink):
    def abort(self, handle: Handle) -> None:
        pass


class AbortsWhatIsCommitted(LinesSink):
    def abort(self, handle: Handle) -> None:
        super().abort(handle)
        for path in self.done.glob("*"):
            path.unlink()


class ListsNothing(LinesSink):
    def pending(self, identity: str) -> Iterable[Pending]:
        return ()


class ListsWhatIsOthers(LinesSink):
    def pending(self, identity: str) -> Iterable[Pending]:
        for path in self.open.glob("assent-*"):
            yield Pending.named(Handle(self.kind, path.name), TransactionName.parse(path.name))


class GuessesThatItIsCommitted(LinesSink):
    def verdict(self, handle: Handle) -> Verdict:
        return Verdict.PENDING if (self.open / handle.name).exists() else Verdict.COMMITTED


class GuessesThatItIsAborted(LinesSink):
    def verdict(self, handle: Handle) -> Verdict:
        return Verdict.ABORTED

    def commit(self, handle: Handle) -> None:
        if not (self.done / handle.name).exists():
            (self.open / handle.name).rename(self.done / handle.name)


class NamesByPlaceAlone(LinesSink):
    def begin(self, name: TransactionName, epoch: int) -> IO[str]:
        short = f"assent-{name.identity}-{name.term}-{name.place}-{name.partition}-00"
        return (self.open / short).open("w")


class HasAnotherTargetEachTime(LinesSink):
    @property
    def target(self) -> str:
        return f"{self.done} {id(self)}"


MUTANTS = [
    ShowsWhatIsPrepared,
    CommitsTwice,
    ForgetsToCommit,
    AbortsNothing,
    AbortsWhatIsCommitted,
    ListsNothing,
    ListsWhatIsOthers,
    GuessesThatItIsCommitted,
    GuessesThatItIsAborted,
    NamesByPlaceAlone,
    HasAnotherTargetEachTime,
]


class MutantSubject(LinesSubject):
    def __init__(self, folder: Path, made: type[LinesSink]) -> None:
        super().__init__(folder)
        self._made = made

    def sink(self) -> Sink[Any]:
        return self._made(self.folder)


def failures(folder: Path, made: type[LinesSink]) -> Iterator[str]:
    """The tests of the kit that fail, but for those with a process of their own, which are slow."""
    kit = SinkConformance()
    for name, test in inspect.getmembers(kit, inspect.ismethod):
        if not name.startswith("test_") or "process" in name or "killed" in name:
            continue
        wanted = inspect.signature(test).parameters
        for number, (when, step) in enumerate(MOMENTS if "when" in wanted else MOMENTS[:1]):
            subject = MutantSubject(folder / f"{name}-{number}", made)
            moment = {"when": when, "step": step} if "when" in wanted else {}
            try:
                test(subject=subject, **moment)
            except (Exception, pytest.fail.Exception):
                yield name


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: made.__name__)
def test_a_broken_promise_is_found(tmp_path: Path, made: type[LinesSink]) -> None:
    assert list(failures(tmp_path, made))


def test_the_sink_that_they_are_made_of_passes(tmp_path: Path) -> None:
    assert list(failures(tmp_path, LinesSink)) == []
