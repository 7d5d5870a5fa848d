"""The real protocol on simulated stores, disk, network and time: see docs/simulation.md."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator

import pytest

from assent.ledger.local import LocalStore
from assent.protocol.coordinator import Coordinator
from assent.testing.simulation.__main__ import main
from assent.testing.simulation.choices import Choices
from assent.testing.simulation.disk import ROOT, Disk, mounted
from assent.testing.simulation.exhaustive import Search, replay, small_case
from assent.testing.simulation.history import run_history
from assent.testing.simulation.scheduler import Scheduler
from assent.testing.simulation.shrink import kind_of, shrink
from tests.test_mutations import commits_before_it_decides

LONG = [pytest.mark.faults, pytest.mark.long]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Tens of thousands of expected warnings say nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def run_histories(count: int) -> None:
    """Fresh ones each time. The seed is in the message, and replays the history."""
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first}")
    for seed in range(first, first + count):
        outcome = run_history(seed)
        if outcome.violations:
            short = shrink(outcome)
            trace = "\n".join(short.trace)
            pytest.fail(f"seed {seed} breaks a rule: {short.violations}\n{trace}\n{short.choices}")


def test_rules_hold_in_random_histories() -> None:
    run_histories(1500)


@pytest.mark.faults
@pytest.mark.long
def test_rules_hold_in_many_random_histories() -> None:
    run_histories(30_000)


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_one_history(seed: int) -> None:
    first, second = run_history(seed, traced=True), run_history(seed, traced=True)
    assert first == second
    assert run_history(given=first.choices, traced=True) == first


def test_no_choices_are_a_quiet_history() -> None:
    outcome = run_history(traced=True)
    assert not any(outcome.choices)
    assert not outcome.violations
    assert "    from here on nothing fails" in outcome.trace


def test_a_failing_history_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    commits_before_it_decides(monkeypatch)
    failed = next(filter(lambda outcome: outcome.violations, map(run_history, range(100))))
    short = shrink(failed)
    assert kind_of(short.violations[0]) == kind_of(failed.violations[0])
    assert sum(map(bool, short.choices)) <= sum(map(bool, failed.choices))
    assert any("commit" in line for line in short.trace)


@pytest.mark.parametrize(
    "store", ["database", *(pytest.param(f"broker {n}", marks=LONG) for n in (2, 1))]
)
def test_rules_hold_in_all_interleavings_with_a_crash(store: str) -> None:
    search = Search(small_case(store), crashes=1)
    search.run()
    assert search.failed is None
    assert search.is_complete
    assert len(search.states) > 300
    print(f"{len(search.states)} states, {search.interleavings} interleavings")


@pytest.mark.faults
@pytest.mark.long
def test_rules_hold_in_all_interleavings_with_two_crashes() -> None:
    search = Search(small_case(), crashes=2)
    search.run()
    assert search.is_complete, search.failed
    print(f"{len(search.states)} states, {search.interleavings} interleavings")


def test_all_interleavings_hold_the_one_that_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decided epoch that nobody finishes after a crash: one instant in a thousand."""
    monkeypatch.setattr(Coordinator, "_is_complete", lambda self, decided, tail: True)
    search = Search(small_case(), crashes=1)
    search.run()
    assert search.failed is not None
    again = replay(search)
    assert again.violations == search.failed.violations
    assert any("is killed before" in line for line in again.trace)


def test_a_power_cut_takes_what_was_not_flushed() -> None:
    disk = Disk(Scheduler(), lambda path, content: None)
    with mounted(disk):
        LocalStore(ROOT).create("records/a", b"kept")
        path = disk.path(f"{ROOT}/records/b")
        with disk.open_file(path, "xb") as file:
            file.write(b"lost")
            file.flush()
        assert LocalStore(ROOT).list("records") == ["a", "b"]
        disk.cut_power(Choices([1] * 20))
        assert LocalStore(ROOT).list("records") == ["a"]
        assert LocalStore(ROOT).read("records/a") == b"kept"


def test_the_command_prints_seed_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "20", "--seed", "7", "--json"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == "seed 7"
    summary = json.loads(last)
    assert (summary["histories"], summary["violations"]) == (20, [])
    assert summary["historiesPerSecond"] > 0


def test_the_command_prints_the_trace_of_a_failing_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commits_before_it_decides(monkeypatch)
    assert main(["--histories", "100", "--seed", "1"]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN: " in printed
    choices = printed.partition("choices: ")[2].splitlines()[0]
    assert main(["--replay", choices]) == 1
    assert "no record names it" in capsys.readouterr().out


def test_the_command_counts_the_states_of_the_small_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--exhaustive", "--crashes", "0", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["complete"]
    assert summary["states"] > 20


def test_the_command_names_the_stores_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--exhaustive", "--store", "broker"])
    assert "'broker last'" in capsys.readouterr().err
