"""The real protocol against an adversary: see tests/machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.machine import ProtocolMachine

COMMON = settings(
    deadline=None,
    print_blob=True,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Tens of thousands of expected warnings say nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_rules_hold_in_every_history() -> None:
    """The same histories at each run, so that a failure is one of the change at hand."""
    run_state_machine_as_test(
        ProtocolMachine, settings=settings(COMMON, max_examples=400, derandomize=True)
    )


@pytest.mark.faults
@pytest.mark.long
def test_rules_hold_in_more_and_longer_histories() -> None:
    """Other histories come with `--hypothesis-seed=…` once `derandomize` is taken out."""
    longer = settings(COMMON, max_examples=1500, stateful_step_count=50, derandomize=True)
    run_state_machine_as_test(ProtocolMachine, settings=longer)
