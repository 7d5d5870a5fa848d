"""The producer that waits for the next task. That real ones do is tested with the sink."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from assent.protocol.name import TransactionName
from assent.sinks.kafka_client import Client
from assent.sinks.kafka_forecast import Forecast
from assent.sinks.kafka_reserve import Reserve

NAME = TransactionName("3f2a9c0d3f2a9c0d", 0, 0, 0, "5be1", 0)
SECONDS = 10.0


class FakeClient:
    """Works or not, and is closed once."""

    def __init__(self, usable: bool = True) -> None:
        self.usable = usable
        self.closed = threading.Event()

    def is_usable(self) -> bool:
        return self.usable

    def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


def client(**given: Any) -> Client:
    return cast(Client, FakeClient(**given))


def closed(one: Client) -> bool:
    return cast(FakeClient, one).closed.wait(SECONDS)


@pytest.fixture
def reserve() -> Reserve:
    return Reserve(Forecast(NAME.identity, "0a1b2c3d"))


def test_what_is_kept_is_taken_once(reserve: Reserve) -> None:
    one = client()
    assert reserve.take(NAME, "purpose") is None
    assert reserve.keep("purpose", lambda: one)
    ready = reserve.take(NAME, "purpose")
    assert ready is not None
    assert ready.client is one
    assert reserve.take(NAME, "purpose") is None
    assert not cast(FakeClient, one).closed.is_set()


def test_a_task_waits_for_what_is_being_made(reserve: Reserve) -> None:
    one, may_go_on = client(), threading.Event()

    def make() -> Client:
        assert may_go_on.wait(SECONDS)
        return one

    assert reserve.keep("purpose", make)
    threading.Timer(0.05, may_go_on.set).start()
    ready = reserve.take(NAME, "purpose")
    assert ready is not None
    assert ready.client is one


def test_there_is_one_at_a_time(reserve: Reserve) -> None:
    one = client()
    assert reserve.keep("purpose", lambda: one)
    assert not reserve.keep("purpose", client)
    assert reserve.expected() is None


def test_what_was_made_for_another_purpose_is_closed_and_not_waited_for(reserve: Reserve) -> None:
    one, may_go_on = client(), threading.Event()

    def make() -> Client:
        assert may_go_on.wait(SECONDS)
        return one

    assert reserve.keep("purpose", make)
    assert reserve.take(NAME, "other purpose") is None
    may_go_on.set()
    assert closed(one)


def test_what_cannot_be_used_is_closed(reserve: Reserve) -> None:
    one = client(usable=False)
    assert reserve.keep("purpose", lambda: one)
    assert reserve.take(NAME, "purpose") is None
    assert closed(one)


def test_what_cannot_be_made_is_done_without(reserve: Reserve) -> None:
    def make() -> Client:
        raise OSError("no broker")

    assert reserve.keep("purpose", make)
    assert reserve.take(NAME, "purpose") is None
    assert reserve.keep("purpose", client)


def test_what_nobody_takes_is_closed() -> None:
    reserve = Reserve(Forecast(NAME.identity, "0a1b2c3d"), idle_seconds=0.01)
    one = client()
    assert reserve.keep("purpose", lambda: one)
    assert closed(one)
    assert reserve.take(NAME, "purpose") is None
