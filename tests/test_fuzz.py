"""Every parser, given anything: a value that reads back the same, or its own error.

The same targets as `make fuzz`, which looks for inputs by what code they reach.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assent.ledger.ledger import Ledger
from assent.protocol.errors import AssentError, ConfigurationError, LedgerError
from assent.protocol.handle import Handle
from assent.protocol.record import RecordKey
from assent.protocol.vote import read_votes
from assent.sinks import mysql_address, postgres_address
from assent.sinks.redis_address import parse_addresses
from assent.testing.memory import MemoryStore
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

_DIGITS = st.sampled_from(
    ["0", "00", "-1", "1.5", "1e5", "9" * 20, "9" * 400, "9" * 5000, "٣", "²"]
)
_WORDS = st.sampled_from(
    [
        "null",
        "true",
        "NaN",
        "Infinity",
        "{}",
        "[]",
        '""',
        '"\\ud800"',
        "[" * 3000,
        "%FF",
        "%2C",
        "\0",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, seed: bytes) -> bytes:
    """A seed with a few bits, bytes or words of it changed, cut off, doubled or exchanged."""
    data = seed
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        to = draw(st.integers(at, min(len(data), at + 20)))
        kind = draw(st.sampled_from(["flip", "cut", "remove", "double", "insert", "digits"]))
        if kind == "flip" and at < len(data):
            flipped = data[at] ^ (1 << draw(st.integers(0, 7)))
            data = data[:at] + bytes([flipped]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "remove":
            data = data[:at] + data[to:]
        elif kind == "double":
            data = data[:to] + data[at:to] + data[to:]
        elif kind == "insert":
            data = data[:at] + draw(st.binary(max_size=6) | _WORDS.map(str.encode)) + data[at:]
        elif kind == "digits":
            numbers = [place for place in range(len(data)) if data[place : place + 1].isdigit()]
            if numbers:
                place = draw(st.sampled_from(numbers))
                data = data[:place] + draw(_DIGITS | _WORDS).encode() + data[place + 1 :]
    return data


@st.composite
def changed(draw: st.DrawFn, seed: bytes) -> bytes:
    """A JSON seed in which one value is another one, or missing."""
    root = json.loads(seed)
    within = root
    while True:
        places = list(within) if isinstance(within, dict) else list(range(len(within)))
        place = draw(st.sampled_from(places))
        if not isinstance(within[place], dict | list) or not within[place] or draw(st.booleans()):
            break
        within = within[place]
    if draw(st.integers(0, 4)) == 0:
        del within[place]
    else:
        within[place] = draw(_VALUES)
    return json.dumps(root).encode()


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["7", "true", "null", 10**30, -(10**400), 1.0, "\ud800"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values),
    max_leaves=4,
)


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    ways = [st.binary(max_size=200), st.text(max_size=100).map(str.encode)]
    for seed in target.seeds:
        ways += [damaged(seed)] * 3
        if seed.startswith(b"{"):
            ways += [changed(seed)] * 3
    return st.one_of(ways)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_anything_is_read_or_refused(target: Target) -> None:
    @settings(
        deadline=None,
        max_examples=int(os.environ.get("ASSENT_FUZZ_EXAMPLES", "50")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(inputs(target))
    def check(data: bytes) -> None:
        target.check(data)

    check()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_seeds_are_taken(target: Target) -> None:
    for seed in target.seeds:
        target.check(seed)


def with_member(golden: bytes, name: str, text: str) -> bytes:
    """A record in which one member, at the top, is another text of JSON."""
    value = json.loads(golden)
    value[name] = "@"
    return json.dumps(value).replace('"@"', text).encode()


SEED = {target.name: target.seeds[0] for target in TARGETS}
CHECK = {target.name: target.check for target in TARGETS}

# Each of these once gave another value than what was written, or an error that was not ours.
FOUND = [
    ("handle", b"files/1:%FF"),
    ("handle", b"files/1:a?b=1&b=2"),
    ("handle", b"files/1:\xff"),
    ("name", "assent-3f2a9c0d-\u0662-17-0-5be1".encode()),
    ("name", b"assent-3f2a9c0d-02-17-0-5be1"),
    ("transactional_id", b"assent-3f2a9c0d-" + b"9" * 5000 + b"-1-4-1-0a1b2c3d"),
    ("transactional_id", b"assent-3f2a9c0d-02-1-4-1-0a1b2c3d"),
    ("mark", b"\xff"),
    ("listing", "\u0660".encode() * 12 + b"-00000002.json"),
    ("record", with_member(SEED["record"], "epoch", "7.5")),
    ("record", with_member(SEED["record"], "epoch", '"7"')),
    ("record", with_member(SEED["record"], "epoch", "true")),
    ("record", with_member(SEED["record"], "epoch", "-7")),
    ("record", with_member(SEED["record"], "epoch", '7,"epoch":8')),
    ("record", with_member(SEED["record"], "digest", "null")),
    ("record", with_member(SEED["record"], "contexts", '"abc"')),
    ("record", with_member(SEED["record"], "version", "true")),
    ("record", SEED["record"].replace(b'"files"', b'"\\ud800"')),
    ("record", SEED["record"].replace(b'"files"', b'""')),
    ("amendment", with_member(SEED["amendment"], "whole", '"false"')),
    ("term", SEED["term"].replace(b'"term":3', b'"term":4')),
    ("identity", SEED["identity"].replace(b'"generation":0', b'"generation":1')),
    ("identity", with_member(SEED["identity"], "sinks", '"files"')),
    ("vote", with_member(SEED["vote"], "skipped", '"false"')),
    ("vote", with_member(SEED["vote"], "version", "true")),
    ("claim", with_member(SEED["claim"], "timestamp", "1.5")),
    ("seal", b'{"version":1,"transactions":"ab"}'),
    ("offset_log", b"v1\n{}\n" + b"[" * 100_000),
    ("offset_log", b'v1\n{}\n{"t":{"' + b"9" * 5000 + b'":1}}'),
    ("offset_log", 'v1\n{}\n{"t":{"\u0663":1}}'.encode()),
    ("offset_log", b'v1\n{}\n{"t":{"0":' + b"9" * 30 + b"}}"),
    ("query_id", b'{"id":null}'),
    ("option", b"9" * 400 + b"d"),
    ("option", b"25d"),
    ("kafka_settings", b"bootstrap.servers=a:1\nmessage.max.bytes=" + b"9" * 5000),
    ("kafka_settings", b"bootstrap.servers=a:1\ntransaction.timeout.ms=" + b"9" * 5000),
    ("kafka_settings", b"bootstrap.servers=a:" + b"9" * 5000),
    ("postgres_address", b"postgresql://a%2Cb/d"),
    ("postgres_address", b"postgresql://u:%FF@h/d"),
    ("postgres_address", b"postgresql://u:%00@h/d"),
    ("postgres_address", b"postgresql://h:99999/d"),
    ("mysql_address", b"mysql://h:" + b"9" * 5000 + b"/d"),
    ("mysql_address", b"mysql://u:%FF@h/d"),
    ("redis_addresses", b"redis://h:0"),
    ("redis_addresses", b"redis://h/0?port=77"),
    ("redis_addresses", b"redis://h/0?db=-1"),
    ("path", b"/tmp/\0"),
    ("path", b"file://["),
    ("avro", b"[]"),
    ("avro", b'{"type":"record"}'),
    ("avro", b'{"type":"record","fields":[{"name":"l","type":{}}]}'),
    (
        "avro",
        b'{"type":"record","fields":[{"name":"t","type":["null",{"type":"long","logicalType":5}]}]}',
    ),
    ("avro", SEED["avro"].replace(b'"size": 9', b'"size": 1')),
    ("headers", b"\xff=1"),
    ("rows", b"\xff"),
    ("rows", b"\0\0\0\0\0\0\xf8\x7f"),
    ("answer", b"\0"),
]


@pytest.mark.parametrize(("target", "data"), FOUND)
def test_what_was_found_once(target: str, data: bytes) -> None:
    CHECK[target](data)


def stored(name: str, content: bytes) -> Ledger:
    return Ledger(MemoryStore({name: content}))


def read_record(content: bytes) -> object:
    return stored("records/000000000017-00000002.json", content).read(RecordKey(17, 2))


FOUND_RECORDS = {
    "negative": with_member(SEED["record"], "epoch", "-7"),
    "half": SEED["record"].replace(b'"files"', b'"\\ud800"'),
    "empty": SEED["record"].replace(b'"files"', b'""'),
    "twice": with_member(SEED["record"], "epoch", '7,"epoch":8'),
}

# Read without a word once, and as something else than what was written.
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Handle.parse("files/1:%FF"), ValueError, "utf-8"),
    (lambda: Handle.parse("files/1:a?b=1&b=2"), ValueError, "there twice"),
    (lambda: read_votes(['{"version":1}']), AssentError, "same release of assent"),
    (lambda: read_record(FOUND_RECORDS["negative"]), LedgerError, "epoch is -7, not a whole"),
    (lambda: read_record(FOUND_RECORDS["half"]), LedgerError, "surrogates not allowed"),
    (lambda: read_record(FOUND_RECORDS["empty"]), LedgerError, "without kind or name"),
    (lambda: read_record(FOUND_RECORDS["twice"]), LedgerError, "names a key twice"),
    (
        lambda: stored("terms/00000004.json", SEED["term"]).newest_term(),
        LedgerError,
        "terms/00000004.json holds term 3: a file was renamed",
    ),
    (
        lambda: stored("identities/00000001.json", SEED["identity"]).find(),
        LedgerError,
        "identities/00000001.json holds the identity of generation 0",
    ),
    (lambda: postgres_address.Address.parse("postgresql://u:%FF@h/d"), ConfigurationError, "UTF-8"),
    (lambda: postgres_address.Address.parse("postgresql://u:%00@h/d"), ConfigurationError, "zero"),
    (lambda: mysql_address.Address.parse("mysql://u:%FF@h/d"), ConfigurationError, "UTF-8"),
    (lambda: mysql_address.Address.parse("mysql://h:0/d"), ConfigurationError, "1 to 65535"),
    (lambda: parse_addresses("redis://h:0"), ConfigurationError, "not the address of a Redis"),
    (lambda: parse_addresses("redis://h?user=x"), ConfigurationError, "nothing here: user; "),
]


@pytest.mark.parametrize(("read", "error", "message"), REFUSED)
def test_what_is_refused_and_how(
    read: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        read()
