"""The machine can fail: each rule, taken out of the protocol, is missed within some histories."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from assent.ledger.ledger import Ledger
from assent.ledger.listing import Listing
from assent.ledger.store import AlreadyExistsError
from assent.ledger.tail import Tail
from assent.ledger.term import Term
from assent.protocol import coordinator as coordinator_module
from assent.protocol import sweeper
from assent.protocol.assignment import Assignment, Torn
from assent.protocol.ballot import Ballot
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import RetriableError
from assent.protocol.json_value import dump
from assent.protocol.participant import Participant
from assent.protocol.record import DecidedEpoch, Record
from assent.protocol.replay import Replay
from assent.protocol.settler import Settler
from assent.protocol.share import Share
from assent.protocol.verdict import Verdict
from assent.protocol.vote import Vote
from tests.machine.machine import ProtocolMachine
from tests.machine.world import World

pytestmark = [pytest.mark.faults, pytest.mark.long]

Patch = pytest.MonkeyPatch

HISTORIES = settings(
    max_examples=10_000,  # the rarest is found within some hundred
    stateful_step_count=60,  # what needs two runs at work shows late
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def commits_before_it_decides(patch: Patch) -> None:
    decide = Coordinator._decide

    def mutated(self: Coordinator, ballot: Ballot, decided: DecidedEpoch | None) -> DecidedEpoch:
        for share in ballot.shares:
            for prepared in share.prepared:
                self.sinks[prepared.sink].commit(prepared.handle)
        return decide(self, ballot, decided)

    patch.setattr(Coordinator, "_decide", mutated)


def aborts_without_a_void(patch: Patch) -> None:
    def mutated(
        self: Coordinator, votes: Sequence[Vote], epoch: int, assignment: Assignment | None = None
    ) -> None:
        self._abort_votes(votes)

    patch.setattr(Coordinator, "abort", mutated)


def aborts_what_is_decided(patch: Patch) -> None:
    abort = Coordinator.abort

    def mutated(
        self: Coordinator, votes: Sequence[Vote], epoch: int, assignment: Assignment | None = None
    ) -> None:
        abort(self, votes, epoch, assignment)
        self._abort_votes(votes)

    patch.setattr(Coordinator, "abort", mutated)


def sweeps_what_runs(patch: Patch) -> None:
    """Its own epoch, and that of a newer run: its own alone no history shows any more.

    Since a key is given to one plan only, a run sweeps when nothing of its own is at work.
    """
    patch.setattr(sweeper, "_is_past", lambda pending, next_key, closed: True)


def never_sweeps(patch: Patch) -> None:
    patch.setattr(sweeper, "_is_past", lambda pending, next_key, closed: False)


def takes_without_closing(patch: Patch) -> None:
    def mutated(self: Ledger, term: Term, run: str) -> tuple[int, Listing]:
        listing = self._list()
        places = listing.places(term.number)
        return (places[-1] + 1 if places else term.first_place), listing

    patch.setattr(Ledger, "_close", mutated)


def takes_what_exists_for_its_own(patch: Patch) -> None:
    def mutated(self: Ledger, record: Record) -> Record:
        try:
            self._store.create(
                f"records/{record.key.place:012d}-{record.key.term:08d}.json",
                dump(record.to_json()).encode(),
            )
        except AlreadyExistsError:
            pass
        return record

    patch.setattr(Ledger, "write", mutated)


def gives_up_a_write_without_a_void(patch: Patch) -> None:
    def mutated(self: Coordinator, record: Record) -> Record:
        try:
            return self.ledger.write(record)
        except Exception as error:
            raise RetriableError("not written") from error

    patch.setattr(Coordinator, "_write", mutated)


def prunes_voids(patch: Patch) -> None:
    def mutated(self: Ledger, tail: Tail, retained: int) -> None:
        bound, needed = tail.next_place - retained, set(tail.keys())
        for key in self.record_keys():
            if key.place < bound and key not in needed:
                self._store.delete(f"records/{key.place:012d}-{key.term:08d}.json")

    patch.setattr(Ledger, "prune", mutated)


def prunes_what_is_needed(patch: Patch) -> None:
    prune = Ledger.prune

    def mutated(self: Ledger, tail: Tail, retained: int) -> None:
        prune(self, replace(tail, decided=()), 0)

    patch.setattr(Ledger, "prune", mutated)


def prunes_nothing(patch: Patch) -> None:
    patch.setattr(Ledger, "prune", lambda self, tail, retained: None)


def accepts_any_replay(patch: Patch) -> None:
    patch.setattr(Ballot, "_replacements", lambda self, decided, torn: self.shares)


def knows_shares_by_their_partition(patch: Patch) -> None:
    """Which task gets which part of the input may change with the replay."""

    def vote(self: Participant, *arguments: Any) -> Vote:
        epoch, partition, attempt, _ = arguments
        decided = self._assignment.decided
        if decided is None or decided.torn is None or not self._assignment.is_decided(epoch):
            return honest(self, *arguments)
        sinks = [sink for at, sink in decided.torn.parts if at == partition]
        if sinks:
            return self._write(sinks, *arguments)
        return self._skip(epoch, Share(partition, attempt, "", ()))

    honest = Participant.vote
    patch.setattr(Participant, "vote", vote)
    patch.setattr(Ballot, "_replacements", lambda self, decided, torn: self.shares)


def rewrites_what_is_committed(patch: Patch) -> None:
    finish = Coordinator._finish

    def mutated(self: Coordinator, *args: Any, **options: Any) -> Any:
        epoch, key, torn = finish(self, *args, **options)
        return epoch, key, None if torn is None else Torn(True, torn.parts)

    patch.setattr(Coordinator, "_finish", mutated)


def calls_the_coming_epoch_complete(patch: Patch) -> None:
    completed = coordinator_module._completed_through

    def mutated(*arguments: Any) -> int | None:
        through = completed(*arguments)
        return None if through is None else through + 1

    patch.setattr(coordinator_module, "_completed_through", mutated)


def takes_a_failed_commit_for_an_abort(patch: Patch) -> None:
    _settle_without_verdict(patch, Verdict.ABORTED)


def takes_a_failed_commit_for_a_commit(patch: Patch) -> None:
    _settle_without_verdict(patch, Verdict.COMMITTED)


def _settle_without_verdict(patch: Patch, guess: Verdict) -> None:
    def mutated(self: Settler, prepared: Any, *_: Any, **__: Any) -> tuple[Verdict, str]:
        try:
            self.sinks[prepared.sink].commit(prepared.handle)
        except Exception as error:
            return guess, str(error)
        return Verdict.COMMITTED, ""

    patch.setattr(Settler, "_settle", mutated)


def ignores_doubt(patch: Patch) -> None:
    patch.setattr(Settler, "_refuse_doubt", lambda self, epoch, parts, outcomes: None)


def ignores_an_older_checkpoint(patch: Patch) -> None:
    patch.setattr(Replay, "running", lambda self, tail: None)
    patch.setattr(Replay, "refuse_other_input", lambda self, decision: None)


def completes_what_is_not_committed(patch: Patch) -> None:
    finish = Coordinator._finish

    def mutated(self: Coordinator, decided: DecidedEpoch, *args: Any, **options: Any) -> Any:
        self._complete(decided.epoch)
        return finish(self, decided, *args, **options)

    patch.setattr(Coordinator, "_finish", mutated)


def asks_for_what_is_complete(patch: Patch) -> None:
    patch.setattr(Coordinator, "_is_complete", lambda self, decided, tail: False)


WRONG_ROWS = "rows twice|not all visible"
ABORTED = "a record names it|which we had aborted|may still be decided"

MUTATIONS: dict[Callable[[Patch], None], str] = {
    commits_before_it_decides: "no record names it",
    aborts_without_a_void: ABORTED,
    aborts_what_is_decided: "is aborted, and a record names it",
    sweeps_what_runs: ABORTED,
    never_sweeps: "left behind",
    takes_without_closing: "decided twice|two records|" + ABORTED,
    takes_what_exists_for_its_own: "no record names it|" + ABORTED,
    gives_up_a_write_without_a_void: ABORTED,
    prunes_voids: "was void, and is decided now",
    prunes_what_is_needed: "LedgerError",
    prunes_nothing: "records are kept",
    accepts_any_replay: "no ReplayError|" + WRONG_ROWS,
    knows_shares_by_their_partition: WRONG_ROWS,
    rewrites_what_is_committed: WRONG_ROWS,
    calls_the_coming_epoch_complete: "complete, which it is not",
    takes_a_failed_commit_for_an_abort: WRONG_ROWS,
    takes_a_failed_commit_for_a_commit: WRONG_ROWS,
    ignores_doubt: WRONG_ROWS,
    ignores_an_older_checkpoint: "no ReplayError",
    completes_what_is_not_committed: "called complete",
    asks_for_what_is_complete: "stopped without need: .InDoubtError",
}
"""Each with the violation by which it has to be found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_machine_finds(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """By the violation that the rule is there to prevent, and not by a side effect."""
    expected = MUTATIONS[mutation]
    violate = World.violate

    def violate_as_expected(self: World, text: str) -> None:
        if re.search(expected, text):
            violate(self, text)

    teardown = ProtocolMachine.teardown

    def end_as_expected(self: ProtocolMachine) -> None:
        try:
            teardown(self)
        except AssertionError as error:
            if re.search(expected, str(error)):
                raise

    monkeypatch.setattr(World, "violate", violate_as_expected)
    monkeypatch.setattr(ProtocolMachine, "teardown", end_as_expected)
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match=expected):
        run_state_machine_as_test(ProtocolMachine, settings=HISTORIES)
