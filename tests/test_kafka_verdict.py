"""The table of docs/kafka-verdicts.md: every row, as a pure function."""

from __future__ import annotations

import re
from pathlib import Path

import kafka.errors
import pytest

from assent.protocol.verdict import Verdict
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_verdict import ANSWERS, Answer, Described, State, classify, verdict

_HANDLE = ProducerIdentity(17, 4)
_NEXT = ProducerIdentity(17, 5)
_DOCUMENT = Path(__file__).parents[1] / "docs" / "kafka-verdicts.md"

_COMMITTED = {State.PREPARE_COMMIT, State.COMPLETE_COMMIT}
_ABORTED = {State.PREPARE_ABORT, State.COMPLETE_ABORT}


def _judge(
    state: State, found: ProducerIdentity, version: int, handle: ProducerIdentity = _HANDLE
) -> Verdict:
    return verdict(handle, Described("id", state, found), version)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("state", State)
def test_the_same_producer_and_epoch(state: State, version: int) -> None:
    expected = Verdict.UNKNOWN
    if state is State.ONGOING:
        expected = Verdict.PENDING
    elif state in _COMMITTED:
        expected = Verdict.COMMITTED
    elif state in _ABORTED:
        expected = Verdict.ABORTED
    assert _judge(state, _HANDLE, version) is expected


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", State)
def test_the_next_epoch_where_only_giving_up_raises_it(state: State, version: int) -> None:
    expected = Verdict.ABORTED if state in _ABORTED else Verdict.UNKNOWN
    assert _judge(state, _NEXT, version) is expected


@pytest.mark.parametrize("state", State)
def test_the_next_epoch_where_every_end_raises_it(state: State) -> None:
    expected = Verdict.UNKNOWN
    if state in _COMMITTED:
        expected = Verdict.COMMITTED
    elif state in _ABORTED:
        expected = Verdict.ABORTED
    assert _judge(state, _NEXT, 2) is expected


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    "found",
    [
        ProducerIdentity(17, 6),
        ProducerIdentity(17, 3),
        ProducerIdentity(17, 0),
        ProducerIdentity(18, 4),
        ProducerIdentity(18, 5),
        ProducerIdentity(18, 0),
    ],
)
def test_anything_else_proves_nothing(state: State, version: int, found: ProducerIdentity) -> None:
    assert _judge(state, found, version) is Verdict.UNKNOWN


def test_no_such_id_proves_nothing() -> None:
    assert verdict(_HANDLE, None, 2) is Verdict.UNKNOWN


def test_after_the_last_epoch_comes_another_producer() -> None:
    last, turned = ProducerIdentity(17, 32766), ProducerIdentity(99, 0)
    assert _judge(State.COMPLETE_COMMIT, turned, 2, last) is Verdict.COMMITTED
    assert _judge(State.COMPLETE_ABORT, turned, 2, last) is Verdict.ABORTED
    assert _judge(State.ONGOING, turned, 2, last) is Verdict.UNKNOWN
    assert _judge(State.EMPTY, turned, 2, last) is Verdict.UNKNOWN
    # Without the second version the producer changes only when the id is initialised again.
    assert _judge(State.COMPLETE_COMMIT, turned, 0, last) is Verdict.UNKNOWN
    assert _judge(State.COMPLETE_ABORT, turned, 0, last) is Verdict.UNKNOWN
    assert _judge(State.COMPLETE_COMMIT, ProducerIdentity(99, 1), 2, last) is Verdict.UNKNOWN


def test_a_state_of_a_later_broker_proves_nothing() -> None:
    assert State("Prepared") is State.OTHER


def test_only_no_error_means_done() -> None:
    done = [code for code in range(-1, 400) if classify(code) is Answer.DONE]
    assert done == [0]


def test_a_code_of_a_later_broker_makes_us_ask() -> None:
    assert classify(999) is Answer.ASK
    assert classify(-1) is Answer.ASK


def test_the_document_lists_every_code_as_the_table_has_it() -> None:
    text = _DOCUMENT.read_text()
    section = text.partition("## EndTxn")[2].partition("\n\nWhat the brokers")[0]
    documented: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*?) \| (\w+) \|", section, re.MULTILINE):
        for name in re.findall(r"`([A-Z_]+)`", row[0]):
            documented[name] = row[1]
    table = {
        ("NONE" if code == 0 else kafka.errors.for_code(code).message): answer.value
        for code, answer in ANSWERS.items()
    }
    assert documented == table
