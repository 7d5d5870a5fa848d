"""The simulator can fail: each rule, taken out of the code, is missed within some histories."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import assent.ledger.ledger
import assent.ledger.local
from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.ledger.store import AlreadyExistsError
from assent.protocol.coordinator import Coordinator
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.policy import OnTimeout
from assent.protocol.record import DecidedEpoch, RecordKey
from assent.protocol.sweeper import Sweeper
from assent.protocol.tenure import Tenure
from assent.protocol.verdict import Verdict
from assent.sinks import kafka_verdict
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_id import TransactionalId
from assent.testing.simulation.broker import BrokerSink
from assent.testing.simulation.database import DatabaseSink
from assent.testing.simulation.history import run_history
from assent.testing.simulation.scheduler import Aside
from assent.testing.simulation.witness import Witness
from tests import test_mutations as shared

pytestmark = pytest.mark.faults

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]

FIRST_SEED = 1
MOST_HISTORIES = 6000

# The disk


def flushes_no_content(patch: Patch) -> None:
    module: Any = assent.ledger.local

    def mutated(path: Any, new: Any, content: bytes) -> bool:
        with module.open(new, "xb") as file:
            file.write(content)
            file.flush()
        try:
            module.os.link(new, path)
        except FileExistsError:
            raise AlreadyExistsError(str(path)) from None
        module.flush_folder(path.parent)
        return True

    patch.setattr(module, "_create", mutated)


def flushes_no_folder(patch: Patch) -> None:
    patch.setattr(assent.ledger.local, "flush_folder", lambda folder: None)


def trusts_folders_that_are_there(patch: Patch) -> None:
    def mutated(self: LocalStore, folder: Path) -> None:
        assent.ledger.local._make_folder(folder)

    patch.setattr(LocalStore, "_make_folder", mutated)


def acts_on_what_may_not_be_flushed(patch: Patch) -> None:
    patch.setattr(Ledger, "secure", lambda self: None)


def takes_over_what_may_not_be_flushed(patch: Patch) -> None:
    patch.setattr(LocalStore, "recover", lambda self: None)


# Keys, terms and names


def gives_a_key_to_two_plans(patch: Patch) -> None:
    never = property(lambda self: None, lambda self, key: None)
    patch.setattr(Tenure, "assigned", never)


def forgets_voids_at_once(patch: Patch) -> None:
    patch.setattr(assent.ledger.ledger, "VOID_AGE_SECONDS", -1.0)


def shares_an_id_between_attempts(patch: Patch) -> None:
    of = TransactionalId.of

    def mutated(name: TransactionName, mark: str) -> TransactionalId:
        return of(replace(name, attempt=0), mark)

    patch.setattr(TransactionalId, "of", mutated)


def shares_an_id_between_terms(patch: Patch) -> None:
    of = TransactionalId.of

    def mutated(name: TransactionName, mark: str) -> TransactionalId:
        return of(replace(name, term=0), mark)

    patch.setattr(TransactionalId, "of", mutated)


def makes_an_id_ready_that_is_in_use(patch: Patch) -> None:
    """That of the place before, whose transaction is not settled yet."""
    ahead = TransactionalId.ahead

    def mutated(identity: str, term: int, place: int, *more: Any, **named: Any) -> TransactionalId:
        return replace(ahead(identity, term, 0, *more, **named), place=0)

    patch.setattr(TransactionalId, "ahead", mutated)


# Sweeping


def lets_a_sweep_be_overtaken(patch: Patch) -> None:
    """By the next place but one, which it cannot tell from its own if ids are used again."""
    patch.setattr(Aside, "wait", lambda self: None)


def sweeps_by_way_of_the_next_term(patch: Patch) -> None:
    sweep = Sweeper.sweep

    def mutated(
        self: Sweeper, identity: str, key: RecordKey, contexts: Any = (), *, closed: bool = False
    ) -> int:
        if closed:
            key = RecordKey(key.place, key.term + 1)
        return sweep(self, identity, key, contexts)

    patch.setattr(Sweeper, "sweep", mutated)


# Telling readers


def decides_whatever_readers_see(patch: Patch) -> None:
    patch.setattr(Coordinator, "_confirm", lambda self, before: None)


def tells_of_no_abort(patch: Patch) -> None:
    patch.setattr(Sweeper, "_confirm", lambda self, sink: None)


def tells_of_a_commit_in_any_case(patch: Patch) -> None:
    confirm = BrokerSink.confirm

    def mutated(self: BrokerSink, handles: Sequence[Handle], end: Verdict) -> None:
        confirm(self, handles, Verdict.COMMITTED)

    patch.setattr(BrokerSink, "confirm", mutated)


# Verdicts


def leaves_the_witness_out(patch: Patch) -> None:
    patch.setattr(DatabaseSink, "_has_witness", lambda self, gid: False)


def takes_unknown_for_aborted(patch: Patch) -> None:
    verdict = kafka_verdict.verdict

    def mutated(handle: ProducerIdentity, described: Any, version: int) -> Verdict:
        found = verdict(handle, described, version)
        return Verdict.ABORTED if found is Verdict.UNKNOWN else found

    patch.setattr(kafka_verdict, "verdict", mutated)


# Options and operators


def gives_up_whatever_is_aborted(patch: Patch) -> None:
    patch.setattr(Coordinator, "_losses", lambda self, decided, aborted: list(aborted))


def writes_again_in_spite_of_fail(patch: Patch) -> None:
    losses = Coordinator._losses

    def mutated(self: Coordinator, decided: DecidedEpoch, aborted: Any) -> Any:
        if self.policy.on_timeout is OnTimeout.FAIL:
            return []
        return losses(self, decided, aborted)

    patch.setattr(Coordinator, "_losses", mutated)


def ignores_the_operator(patch: Patch) -> None:
    patch.setattr(DecidedEpoch, "settlements", lambda self: {})


ROWS = shared.WRONG_ROWS + "|is not visible"
NOT_FLUSHED = "not flushed"
ABORTED = shared.ABORTED
FORGOT = "the store forgot nothing"

MUTATIONS: dict[Mutation, str] = {
    **shared.MUTATIONS,
    flushes_no_content: f"{ROWS}|LedgerError",
    flushes_no_folder: f"{ROWS}|decided twice|LedgerError|IdentityError",
    trusts_folders_that_are_there: NOT_FLUSHED,
    acts_on_what_may_not_be_flushed: NOT_FLUSHED,
    takes_over_what_may_not_be_flushed: NOT_FLUSHED,
    gives_a_key_to_two_plans: f"{FORGOT}|fenced off",
    forgets_voids_at_once: "was void, and is decided now",
    shares_an_id_between_attempts: f"{FORGOT}|fenced off|{ABORTED}",
    shares_an_id_between_terms: f"{FORGOT}|fenced off|{ABORTED}",
    makes_an_id_ready_that_is_in_use: f"{FORGOT}|fenced off|{ABORTED}",
    lets_a_sweep_be_overtaken: ABORTED,
    sweeps_by_way_of_the_next_term: "may still be decided",
    decides_whatever_readers_see: "decided before readers see",
    tells_of_no_abort: "ends again",
    tells_of_a_commit_in_any_case: "is shown as committed",
    leaves_the_witness_out: ROWS,
    takes_unknown_for_aborted: ROWS,
    gives_up_whatever_is_aborted: "nobody has allowed",
    writes_again_in_spite_of_fail: "onTimeout=fail",
    ignores_the_operator: "stopped without need",
}
"""Each with the violation by which it has to be found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def histories_until(expected: str, patch: Patch) -> int | None:
    """How many histories it takes to see the violation that a rule is there to prevent."""
    violate = Witness.violate

    def violate_as_expected(self: Witness, text: str) -> None:
        if re.search(expected, text):
            violate(self, text)

    patch.setattr(Witness, "violate", violate_as_expected)
    for number in range(MOST_HISTORIES):
        if run_history(FIRST_SEED + number).violations:
            return number + 1
    return None


def test_the_code_as_it_is_passes_the_same_histories() -> None:
    for number in range(MOST_HISTORIES):
        outcome = run_history(FIRST_SEED + number)
        assert not outcome.violations, f"seed {FIRST_SEED + number}: {outcome.violations}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_simulator_finds(mutation: Mutation, monkeypatch: Patch) -> None:
    """By the violation that the rule is there to prevent, and not by a side effect."""
    mutation(monkeypatch)
    found = histories_until(MUTATIONS[mutation], monkeypatch)
    assert found is not None, f"not found in {MOST_HISTORIES} histories"
    print(f"{mutation.__name__}: found in history {found}")
