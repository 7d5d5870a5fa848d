"""Sessions that wait for their next use."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from assent.sinks.session_pool import SessionPool


@dataclass(eq=False)
class Line:
    """A session of nothing."""

    works: bool = True
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool() -> SessionPool[Line]:
    return SessionPool(lambda line: line.works, Line.close)


def test_a_session_is_lent_to_one_at_a_time(pool: SessionPool[Line]) -> None:
    line = Line()
    assert pool.take("server") is None
    pool.keep("server", line)
    assert pool.take("other server") is None
    assert pool.take("server") is line
    assert pool.take("server") is None
    assert not line.closed


def test_what_does_not_answer_is_closed_and_not_lent(pool: SessionPool[Line]) -> None:
    works, broken = Line(), Line(works=False)
    pool.keep("server", works)
    pool.keep("server", broken)
    assert pool.take("server") is works
    assert broken.closed


def test_few_stay_open_between_epochs(pool: SessionPool[Line]) -> None:
    lines = [Line() for _ in range(40)]
    other = Line()
    for line in lines:
        pool.keep("server", line)
    pool.keep("other server", other)
    assert not any(line.closed for line in lines)
    pool.trim("server")
    pool.trim("unknown server")
    assert sum(not line.closed for line in lines) == 4
    assert not other.closed
    taken = [pool.take("server") for _ in range(5)]
    assert taken.count(None) == 1
    assert not any(line.closed for line in taken if line)


def test_all_are_closed_with_the_process(pool: SessionPool[Line]) -> None:
    lines = [Line(), Line()]
    pool.keep("server", lines[0])
    pool.keep("other server", lines[1])
    pool.close_idle()
    assert all(line.closed for line in lines)
    assert pool.take("server") is None


def test_a_forked_process_leaves_the_sessions_of_its_parent_alone(
    pool: SessionPool[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    pool.keep("server", line)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert pool.take("server") is None
    pool.trim("server")
    pool.close_idle()
    assert not line.closed
    monkeypatch.setattr(os, "getpid", lambda: parent)
    assert pool.take("server") is line
