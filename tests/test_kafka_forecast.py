"""What a process expects to be asked for, and the ids that it may make for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assent.protocol.name import TransactionName
from assent.sinks.kafka_forecast import Forecast
from assent.sinks.kafka_id import PLACES, TransactionalId

IDENTITY = "3f2a9c0d3f2a9c0d"
MARK = "0a1b2c3d"


def task(place: int, term: int = 0) -> TransactionName:
    return TransactionName(IDENTITY, term, place, 0, "5be1", 0)


def forecasts(*places: int) -> list[tuple[int, str] | None]:
    """The place and the number after the task of each place."""
    forecast = Forecast(IDENTITY, MARK)
    found = []
    for place in places:
        forecast.saw(task(place))
        expected = forecast.next()
        found.append(None if expected is None else (expected[0], expected[1].slot.split("-")[1]))
    return found


def test_one_task_per_epoch() -> None:
    assert forecasts(3, 4, 5, 6) == [None, (5, "0"), (6, "0"), (7, "0")]


def test_several_tasks_per_epoch() -> None:
    assert forecasts(0, 0, 0, 1, 1, 1, 2, 2, 2) == [
        None,
        None,
        None,
        (1, "0"),
        (1, "1"),
        (2, "0"),
        (2, "1"),
        (2, "2"),
        (3, "0"),
    ]


def test_nothing_is_expected_after_a_gap() -> None:
    assert forecasts(0, 1, 3, 4) == [None, (2, "0"), None, (5, "0")]


def test_a_task_that_comes_late_teaches_nothing() -> None:
    assert forecasts(4, 5, 2, 5, 6) == [None, (6, "0"), (6, "1"), (6, "2"), (6, "3")]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=40))
def test_an_id_is_given_out_once_per_place_and_only_when_its_last_place_is_past(
    seen: list[tuple[int, int]],
) -> None:
    forecast = Forecast(IDENTITY, MARK)
    given: dict[TransactionalId, int] = {}
    newest = (-1, -1)
    for term, place in seen:
        newest = max(newest, (term, place))
        forecast.saw(task(place, term))
        expected = forecast.next()
        if expected is None:
            continue
        wanted, transactional_id = expected
        assert transactional_id.term == newest[0]
        assert transactional_id.place == wanted % PLACES
        # The places up to the newest but one are settled.
        assert wanted - PLACES < newest[1] <= wanted
        if transactional_id in given:
            assert given[transactional_id] <= wanted - PLACES
        given[transactional_id] = wanted


def test_no_two_processes_share_an_id() -> None:
    first, second = Forecast(IDENTITY, MARK), Forecast(IDENTITY, MARK)
    for forecast in (first, second):
        for place in (0, 1):
            forecast.saw(task(place))
    assert first.next() != second.next()
