"""The ledger: the log of decisions of one query and group of sinks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from assent.ledger.identity import Identity, Owner
from assent.ledger.listing import Listing, record_name
from assent.ledger.store import AlreadyExistsError, MissingError, RecordStore
from assent.ledger.tail import Tail, is_covered
from assent.ledger.term import Term
from assent.protocol.errors import IdentityError, LedgerError
from assent.protocol.json_value import MALFORMED, dump, load_object
from assent.protocol.name import nonce
from assent.protocol.record import (
    Amendment,
    Author,
    Decision,
    Record,
    RecordKey,
    Void,
    record_from_json,
)

FOLDER = "_assent"
"""The ledger's folder below the checkpoint location, where Spark ignores it."""

_NUMBER = re.compile(r"([0-9]{8})\.json")

TERMS_KEPT = 100
VOID_AGE_SECONDS = 30 * 24 * 3600.0
"""A void keeps a run that was believed dead from deciding. It goes by age, never by count alone."""

Parsed = TypeVar("Parsed")


class Ledger:
    """Records under (place, term), terms, and an identity, on a RecordStore.

    Every record is created if absent and never changed. Whoever finds a record where its own
    should go reads it back: it may be its own, whose answer was lost.
    """

    def __init__(self, store: RecordStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    @property
    def location(self) -> str:
        return self._store.location

    # Identity

    def find(self) -> Identity | None:
        """The identity of the ledger here, or None if there is no ledger."""
        generations = self._numbers("identities")
        if not generations:
            return None
        return self._load_identity(generations[-1])

    def open(self, owner: Owner) -> Identity:
        """The identity of this ledger, created if there is none; refused for another owner."""
        identity = self.find()
        if identity is None:
            try:
                self.create_identity(Identity(nonce(), owner, self._clock()))
            except AlreadyExistsError:
                pass  # somebody else, or we ourselves: either way it is read back
            identity = self._load_identity(0)
        if identity.owner != owner:
            raise IdentityError(_explain_owner(self.location, identity.owner, owner))
        return identity

    def create_identity(self, identity: Identity) -> None:
        """Create the identity of a generation, or raise AlreadyExistsError."""
        name = _identity_name(identity.generation)
        self._store.create(name, dump(identity.to_json()).encode())

    # Terms

    def take(self, run: str) -> Tail:
        """Close the newest term, if there is one, and take the next: close, then take.

        Returns what the holder of the new term has to know, as `tail` would.
        """
        self._store.recover()
        while True:
            newest, known = self.newest_term(), self._list()
            try:
                tail = self._next_tail(newest, run)
            except LedgerError:
                if newest is not None and self.has_term(newest.number + 1):
                    continue  # another run took over in between, and pruned what was being read
                if self._list() != known:
                    continue  # the run that is to be closed went on, and pruned it
                raise
            term = tail.term
            try:
                self._store.create(_term_name(term.number), dump(term.to_json()).encode())
            except AlreadyExistsError:
                if self.read_term(term.number).author != term.author:
                    continue  # another run took it in between, so that one has to be closed too
            self._prune_terms(term)
            return tail

    def _next_tail(self, newest: Term | None, run: str) -> Tail:
        """The tail under the next term, which has no records of its own yet."""
        author, now = Author(run, nonce()), self._clock()
        if newest is None:
            return Tail(Term(0, author, now, first_place=0), 0, None, ())
        place, listing = self._close(newest, run)
        closed = self._read_tail(newest, listing)
        term = Term(newest.number + 1, author, now, place, closed.keys())
        return Tail(term, place, None, closed.decided)

    def newest_term(self) -> Term | None:
        """The highest term that was ever taken."""
        numbers = self._terms()
        return self.read_term(numbers[-1]) if numbers else None

    def read_term(self, number: int) -> Term:
        term = self._load(_term_name(number), Term.from_json)
        if term.number != number:
            raise self._misplaced(_term_name(number), f"term {term.number}")
        return term

    def has_term(self, number: int) -> bool:
        """Whether that term was taken; the cheap way to see whether one's own still holds."""
        try:
            self._store.read(_term_name(number))
        except MissingError:
            return False
        return True

    def _close(self, term: Term, run: str) -> tuple[int, Listing]:
        """Void the term's next free place, so that its run can decide nothing more.

        Returns that place and the records as they are once the void stands.
        """
        listing = self._list()
        places = listing.places(term.number)
        if places and isinstance(self.read(RecordKey(places[-1], term.number)), Void):
            return places[-1], listing
        place = places[-1] + 1 if places else term.first_place
        while True:
            void = Void(RecordKey(place, term.number), Author(run, nonce()), self._clock())
            if not isinstance(self.write(void), Void):
                place += 1  # decided in the meantime: that counts, and the next place is tried
                continue
            listing = self._list()
            newest = listing.places(term.number)[-1]
            if newest == place:
                return place, listing
            place = newest + 1  # a decision landed past the void: void higher

    # Records

    def write(self, record: Record) -> Record:
        """Create the record unless its key is taken; returns the record that stands there.

        The caller compares the author. Any exception leaves open whether the record is there or
        still will be: only a void under the same key makes sure.
        """
        name = _record_name(record.key)
        try:
            self._store.create(name, dump(record.to_json()).encode())
        except AlreadyExistsError:
            return self.read(record.key)
        return record

    def read(self, key: RecordKey) -> Record:
        record = self.find_record(key)
        if record is None:
            raise LedgerError(
                f"{self.location}/{_record_name(key)} is missing, although the ledger refers to "
                "it; restore the checkpoint as a whole"
            )
        return record

    def find_record(self, key: RecordKey) -> Record | None:
        """The record under a key, or None."""
        try:
            record = self._load(_record_name(key), record_from_json)
        except MissingError:
            return None
        if record.key != key:
            raise self._misplaced(_record_name(key), f"the record of {record.key}")
        return record

    def secure(self) -> None:
        """Make durable whatever is visible: its writer may have died before it did so."""
        self._store.recover()

    def record_keys(self) -> list[RecordKey]:
        """The keys of all records that are kept, by place and term."""
        return self._list().keys()

    def _list(self) -> Listing:
        try:
            return Listing.of(self._store.list("records"))
        except ValueError as error:
            raise LedgerError(
                f"{self.location}/records/{error} is not a record of the ledger; remove it if "
                "you know where it comes from"
            ) from None

    def tail(self, term: Term) -> Tail:
        """What the holder of a term has to know. Reads as few records as it takes."""
        return self._read_tail(term, self._list())

    def _read_tail(self, term: Term, listing: Listing) -> Tail:
        places = listing.places(term.number)
        next_place = places[-1] + 1 if places else term.first_place
        closed_by: Author | None = None
        records: list[Decision | Amendment] = []
        keys = [RecordKey(place, term.number) for place in places]
        for key in reversed([*term.tail, *keys]):
            record = self.read(key)
            if isinstance(record, Void):
                next_place, closed_by = record.key.place, record.author
                continue
            records.insert(0, record)
            if is_covered(records):
                break
        return Tail.of(term, next_place, closed_by, records)

    def follow(self, tail: Tail) -> Tail:
        """The tail of the same term as it is now: reads on from where `tail` ends.

        A term's records lie one place after the other, so nothing has to be listed.
        """
        place, records = tail.next_place, list(tail.records())
        while record := self.find_record(RecordKey(place, tail.term.number)):
            if isinstance(record, Void):
                return Tail.of(tail.term, place, record.author, records)
            records.append(record)
            place += 1
        return Tail.of(tail.term, place, None, records)

    def prune(self, tail: Tail, retained: int) -> None:
        """Delete old records, a decision only together with its amendments, no void, no tail.

        Works in bursts, so that most epochs neither list nor delete anything.
        """
        if tail.next_place % max(retained // 4, 1):
            return
        bound = tail.next_place - retained
        keys = self.record_keys()
        voids = {term: place for place, term in ((key.place, key.term) for key in keys)}
        voids.pop(tail.term.number, None)
        spared = set(tail.keys()) | {RecordKey(place, term) for term, place in voids.items()}
        old = [key for key in keys if key.place < bound and key not in spared]
        if not old:
            return
        following = [key for key in keys if key.place >= bound]
        for key in [*old, *self._amendments_of(old[-1], following)]:
            self._store.delete(_record_name(key))

    def _amendments_of(self, key: RecordKey, following: Iterable[RecordKey]) -> list[RecordKey]:
        """Amendments past the bound that belong to decisions up to `key`."""
        found: list[RecordKey] = []
        for candidate in following:
            record = self.read(candidate)
            if isinstance(record, Amendment) and record.amends <= key:
                found.append(candidate)
            elif isinstance(record, Decision):
                break
        return found

    def _prune_terms(self, newest: Term) -> None:
        """Delete the void and the term of runs that ended long ago. The youngest are kept.

        So is the term of a record that still counts, however many terms were taken since.
        """
        horizon = self._clock() - VOID_AGE_SECONDS
        needed = {key.term for key in newest.tail}
        for number, following in pairwise(self._terms()):
            if number in needed:
                continue
            if number > newest.number - TERMS_KEPT or self.read_term(following).taken_at > horizon:
                return
            for place in self._list().places(number):
                self._store.delete(_record_name(RecordKey(place, number)))
            self._store.delete(_term_name(number))

    def _terms(self) -> list[int]:
        return self._numbers("terms")

    def _numbers(self, folder: str) -> list[int]:
        numbers = []
        for name in self._store.list(folder):
            match = _NUMBER.fullmatch(name)
            if match is None:
                raise LedgerError(
                    f"{self.location}/{folder}/{name} does not belong to the ledger; remove it if "
                    "you know where it comes from"
                )
            numbers.append(int(match.group(1)))
        return sorted(numbers)

    def _load_identity(self, generation: int) -> Identity:
        name = _identity_name(generation)
        identity = self._load(name, Identity.from_json)
        if identity.generation != generation:
            raise self._misplaced(name, f"the identity of generation {identity.generation}")
        return identity

    def _misplaced(self, name: str, what: str) -> LedgerError:
        return LedgerError(
            f"{self.location}/{name} holds {what}: a file was renamed or copied; restore the "
            "checkpoint as a whole"
        )

    def _load(self, name: str, parse: Callable[[dict[str, object]], Parsed]) -> Parsed:
        content = self._store.read(name)
        try:
            return parse(load_object(content))
        except MALFORMED as error:
            raise LedgerError(
                f"{self.location}/{name} cannot be read: {error!r}. It is damaged, or a newer "
                "release of assent wrote it: install that release, or restore the checkpoint"
            ) from error


def _record_name(key: RecordKey) -> str:
    return f"records/{record_name(key)}"


def _identity_name(generation: int) -> str:
    return f"identities/{generation:08d}.json"


def _term_name(number: int) -> str:
    return f"terms/{number:08d}.json"


def _explain_owner(location: str, recorded: Owner, found: Owner) -> str:
    checkpoint = found.location.removesuffix(f"/{FOLDER}")
    if recorded.location != found.location:
        what = f"was made at {recorded.location} and is now opened at {found.location}"
        remedy = (
            "a copied or moved checkpoint must not write under the name of the original; when "
            f"nothing is pending in it, run: assent adopt {checkpoint}"
        )
    elif recorded.query != found.query:
        what = f"belongs to query {recorded.query}, not to {found.query}"
        remedy = "use another checkpointLocation, or restore the checkpoint as a whole"
    else:
        what = f"serves {_sinks(recorded)}, and the query now writes to {_sinks(found)}"
        sinks = " ".join(f"--sink '{sink}'" for sink in found.sinks)
        remedy = (
            "start with a new checkpointLocation; or, when nothing is pending in it, run: "
            f"assent adopt {checkpoint} {sinks}"
        )
    return f"the ledger at {location} {what}. To go on: {remedy}"


def _sinks(owner: Owner) -> str:
    return " and ".join(owner.sinks)
