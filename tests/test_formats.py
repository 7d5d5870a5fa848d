"""What is written to disk and into logs: the same bytes in every release that says version 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assent.ledger.identity import Identity, Owner
from assent.ledger.ledger import Ledger
from assent.ledger.term import Term
from assent.protocol.assignment import Assignment, Decided, Torn
from assent.protocol.errors import LedgerError
from assent.protocol.handle import Handle
from assent.protocol.json_value import dump
from assent.protocol.name import TransactionName
from assent.protocol.record import (
    Amendment,
    Author,
    Decision,
    RecordKey,
    Settlement,
    Void,
    record_from_json,
)
from assent.protocol.share import Prepared, Share
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryStore

GOLDEN = Path(__file__).parent / "golden"

IDENTITY = "3f2a9c0d5be14c77"
RUN = "00112233445566aa"
TIME = 1_750_000_000.25


def name(partition: int) -> TransactionName:
    return TransactionName(IDENTITY, 2, 17, partition, f"5be1{partition:04x}")


def handle(partition: int) -> Handle:
    return Handle("files", str(name(partition)), {"epoch": "7", "folder": "a/b c"})


def share(partition: int) -> Share:
    prepared = Prepared(0, handle(partition), 10_000 + partition, 123_456, TIME - 3)
    return Share(partition, 1, f"{partition:032x}", (prepared,))


HANDLES = (
    Handle("files", str(name(0))),
    handle(1),
    Handle("kafka", "assent-3f2a9c0d-2-1", {"producerId": "4001", "producerEpoch": "3"}),
    Handle("postgres", "schöne Grüße/?#&=%+:@", {"a": "1&2=3", "b c": "+ %ü", "empty": ""}),
)

KEY = RecordKey(17, 2)
AUTHOR = Author(RUN, "ffeeddccbbaa9988")
VOTE = Vote(
    7,
    Assignment(
        IDENTITY,
        KEY,
        RUN,
        completed_through=5,
        decided=Decided(
            6,
            RecordKey(15, 1),
            (RecordKey(16, 2),),
            Torn(False, {(0, 0): share(0).fingerprint, (1, 1): share(1).fingerprint}),
        ),
        recover_seconds=0.125,
    ),
    share(1),
    seconds={"begin": 0.5, "write": 1.25, "preCommit": 0.0625},
)
RECORDS: dict[str, Decision | Amendment | Void | Identity | Term] = {
    "decision": Decision(
        KEY,
        AUTHOR,
        epoch=7,
        digest="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        completed_through=6,
        decided_at=TIME,
        tasks=3,
        shares=(share(0), share(1)),
        contexts=({"offsets": [10_000, 10_005]}, None),
        snapshots={"shop.Districts": {"Mitte": 3}},
        statistics={"rows": 20_001, "seconds": {"recover": 0.125, "write": 1.25}},
    ),
    "first_decision": Decision(RecordKey(0, 0), AUTHOR, 0, "", None, TIME, 1, ()),
    "amendment_shares": Amendment(
        RecordKey(18, 2), AUTHOR, KEY, 7, TIME, 3, whole=False, shares=(share(1),)
    ),
    "amendment_whole": Amendment(
        RecordKey(18, 2), AUTHOR, KEY, 7, TIME, 4, whole=True, shares=(share(0), share(3))
    ),
    "amendment_settlements": Amendment(
        RecordKey(19, 3),
        AUTHOR,
        KEY,
        7,
        TIME,
        3,
        settlements=(
            Settlement(0, 0, "lost", "given up after the store's timeout"),
            Settlement(1, 0, "committed", "seen in the store"),
            Settlement(2, 1, "aborted", "rolled back by hand"),
        ),
    ),
    "void": Void(KEY, AUTHOR, TIME),
    "term": Term(3, Author(RUN, "a1b2c3d4"), TIME, 19, (RecordKey(17, 2), RecordKey(18, 2))),
    "first_term": Term(0, Author(RUN, "a1b2c3d4"), TIME, 0),
    "identity": Identity(
        IDENTITY,
        Owner("file:/data/checkpoint/_assent", "q-1", ("files /data/out", "kafka clicks")),
        TIME,
    ),
    "identity_adopted": Identity(
        IDENTITY, Owner("file:/data/checkpoint/_assent", "q-1", ("files /data/out",)), TIME, 1
    ),
}


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def read(kind: str, content: bytes) -> object:
    value = json.loads(content)
    if kind.startswith(("identity", "first_identity")):
        return Identity.from_json(value)
    if kind in ("term", "first_term"):
        return Term.from_json(value)
    return record_from_json(value)


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_version_1_are_read(kind: str) -> None:
    assert read(kind, golden(f"{kind}-1.json")) == RECORDS[kind]


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_version_1_are_written_byte_for_byte(kind: str) -> None:
    assert dump(RECORDS[kind].to_json()).encode() == golden(f"{kind}-1.json")


def test_votes_of_version_2_are_read_and_written_byte_for_byte() -> None:
    text = golden("vote-2.json").decode()
    assert Vote.parse(text) == VOTE
    assert str(VOTE) == text


def test_handles_of_version_1_are_read_and_written_byte_for_byte() -> None:
    lines = golden("handles-1.txt").decode("ascii").splitlines()
    for line, expected in zip(lines, HANDLES, strict=True):
        assert str(expected) == line
        found = Handle.parse(line)
        assert found == expected
        assert found.details == expected.details
        assert Handle.from_json(expected.to_json()) == expected


def test_every_golden_file_is_used() -> None:
    expected = {f"{kind}-1.json" for kind in RECORDS} | {"vote-2.json", "handles-1.txt"}
    assert {path.name for path in GOLDEN.iterdir()} == expected


def newer(content: bytes) -> bytes:
    value = json.loads(content)
    return dump({**value, "version": value["version"] + 1}).encode()


PLACES = {
    "decision": "records/000000000017-00000002.json",
    "amendment_shares": "records/000000000018-00000002.json",
    "void": "records/000000000017-00000002.json",
    "term": "terms/00000003.json",
    "identity": "identities/00000000.json",
}


def look(store: MemoryStore) -> None:
    """Read whatever is there, as the ledger does."""
    ledger = Ledger(store)
    ledger.find()
    ledger.newest_term()
    for key in ledger.record_keys():
        ledger.read(key)


@pytest.mark.parametrize("kind", PLACES)
def test_a_record_of_version_2_is_refused_with_the_files_name(kind: str) -> None:
    content = golden(f"{kind}-1.json")
    look(MemoryStore({PLACES[kind]: content}))
    with pytest.raises(LedgerError, match=PLACES[kind]) as refused:
        look(MemoryStore({PLACES[kind]: newer(content)}))
    assert "newer release" in str(refused.value)


@pytest.mark.parametrize("kind", ["decision", "amendment_shares"])
def test_a_handle_of_version_2_is_refused_with_the_files_name(kind: str) -> None:
    value = json.loads(golden(f"{kind}-1.json"))
    value["shares"][0]["prepared"][0]["handle"]["version"] = 2
    with pytest.raises(LedgerError, match=PLACES[kind]):
        look(MemoryStore({PLACES[kind]: dump(value).encode()}))
    with pytest.raises(ValueError, match="this release reads up to 1"):
        Handle.parse("files/2:name")


def test_a_vote_of_version_3_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="same release of assent"):
        Vote.parse(newer(golden("vote-2.json")).decode())


# Anything at all: an error that says so, or a value that reads back the same.

ANY_TEXT = st.text() | st.from_regex(r"[a-z]+/\d+:.*", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=8,
)


@st.composite
def mangled(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value of ours, in which something, somewhere, is something else or missing."""
    if draw(st.integers(0, 5)) == 0 or not isinstance(value, dict | list) or not value:
        return draw(JSON)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    changed = value.copy()
    if draw(st.integers(0, 5)) == 0:
        del changed[key]
    else:
        changed[key] = draw(mangled(value[key]))
    return changed


@settings(deadline=None)
@given(ANY_TEXT)
@example("files/1:a?b")
@example("files/" + "1" * 5000 + ":a")
@example("files/²:a")
@example("files/1:%FF?=%zz")
def test_any_text_is_a_handle_or_a_value_error(text: str) -> None:
    try:
        found = Handle.parse(text)
    except ValueError:
        return
    assert Handle.parse(str(found)) == found


WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(deadline=None)
@given(NAME, NAME, st.dictionaries(WORD, WORD, max_size=3))
@example("a/b", "c?d:e", {"=": "", "": "=", "&": "&"})
def test_any_handle_survives_its_string_form(kind: str, name: str, details: dict[str, str]) -> None:
    handle = Handle(kind, name, details)
    found = Handle.parse(str(handle))
    assert found == handle
    assert found.details == details
    assert str(handle).isascii()
    assert not set(str(handle)) & set(" '\"\\\n\t")


@settings(deadline=None)
@given(st.text() | st.from_regex(r"assent-[0-9a-z]{4,8}-\d+-\d+-\d+-[0-9a-f]{4,8}"))
@example("assent-0123-1-2-3-abcd\n")
@example("assent-0123-" + "9" * 5000 + "-2-3-abcd")
def test_any_text_is_a_transaction_name_or_a_value_error(text: str) -> None:
    try:
        found = TransactionName.parse(text)
    except ValueError:
        return
    assert TransactionName.parse(str(found)) == found


@settings(deadline=None)
@given(st.text() | mangled(json.loads(str(VOTE))).map(json.dumps))
@example("[" * 100_000)
@example("{}")
@example('{"version":1}')
def test_any_text_is_a_vote_or_a_value_error(text: str) -> None:
    try:
        Vote.parse(text)
    except ValueError:
        pass


CONTENTS = {kind: json.loads(dump(record.to_json())) for kind, record in RECORDS.items()}


@settings(deadline=None)
@given(st.data(), st.sampled_from(sorted(PLACES)))
def test_any_json_in_a_ledger_is_read_or_a_ledger_error_that_names_the_file(
    data: st.DataObject, kind: str
) -> None:
    content = json.dumps(data.draw(mangled(CONTENTS[kind]))).encode()
    message = PLACES[kind]
    try:
        look(MemoryStore({PLACES[kind]: content}))
    except LedgerError as error:
        message = str(error)
    assert PLACES[kind] in message


@settings(deadline=None)
@given(st.binary(), st.sampled_from(sorted(PLACES)))
def test_any_bytes_in_a_ledger_are_a_ledger_error_that_names_the_file(
    content: bytes, kind: str
) -> None:
    with pytest.raises(LedgerError, match=PLACES[kind]):
        look(MemoryStore({PLACES[kind]: content}))
