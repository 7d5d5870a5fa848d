"""Everything that outlives a process, and a witness that checks the rules at every operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from assent.ledger.ledger import Ledger
from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue, load_object
from assent.protocol.listener import EpochListener
from assent.protocol.name import TransactionName
from assent.protocol.policy import Policy
from assent.protocol.record import (
    Amendment,
    DecidedEpoch,
    Decision,
    Record,
    RecordKey,
    Void,
    record_from_json,
)
from assent.protocol.verdict import Verdict
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryCheckpoint, MemoryServer, MemorySink, MemoryStore
from tests.machine.actor import Late, current, gate


@dataclass(frozen=True)
class Votes:
    """What some driver had in hand for an epoch, and may use late."""

    driver: str
    votes: tuple[Vote, ...]
    epoch: int
    all_tasks: bool


class World:
    """Stores, ledger, the engine's checkpoint, time; and what was seen to happen."""

    def __init__(self, sinks: int, retained: int, seed: int, hazard: str) -> None:
        self.now = 1_000_000.0
        self.seed = seed
        self.hazard = hazard
        self.violations: list[str] = []
        self.servers = [MemoryServer() for _ in range(sinks)]
        self.sinks = [WatchedSink(self, position) for position in range(sinks)]
        self.store = WatchedStore(self)
        self.checkpoint = MemoryCheckpoint()
        self.policy = Policy(retained_epochs=retained, commit_timeout=1.0)
        self.listener = WatchedListener(self)
        self.records: dict[RecordKey, Record] = {}
        self.contents: dict[str, bytes] = {}
        self.named: set[str] = set()
        self.aborted_by_us: set[str] = set()
        self.late: list[tuple[str, bytes]] = []
        self.collected: list[Votes] = []
        self.finished: set[int] = set()
        self.snapshots: list[tuple[dict[int, str], set[int]]] = []
        self.generation = 0
        self.restored_too_old = False

    def violate(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ledger(self) -> Ledger:
        return Ledger(self.store, self.clock)

    # The input: the same rows of an epoch, however they are spread over tasks.

    def rows_of(self, epoch: int) -> list[str]:
        return [f"{epoch}-{number}" for number in range((epoch * 3 + self.seed + 3) % 5)]

    def tasks_of(self, epoch: int) -> int:
        return 1 + (epoch * 2 + self.seed + 2) % 3

    # What the ledger says, by all records that were ever written.

    def decisions(self) -> list[Decision]:
        return [record for record in self.records.values() if isinstance(record, Decision)]

    def newest(self) -> DecidedEpoch | None:
        decision = max(self.decisions(), key=lambda decision: decision.epoch, default=None)
        if decision is None:
            return None
        amendments = [
            record
            for record in self.records.values()
            if isinstance(record, Amendment) and record.amends == decision.key
        ]
        return DecidedEpoch(
            decision, tuple(sorted(amendments, key=lambda amendment: amendment.key))
        )

    def unfinished(self) -> list[tuple[int, Handle]]:
        """Sink and handle of everything in the newest epoch, unless the engine has finished it."""
        newest = self.newest()
        if newest is None or self.checkpoint.is_committed(newest.epoch):
            return []
        return [(entry.sink, entry.handle) for entry in newest.transactions().values()]

    def in_doubt(self) -> list[Handle]:
        return [
            handle
            for sink, handle in self.unfinished()
            if handle.name in self.sinks[sink].forgotten
        ]

    def is_visible(self, epoch: int) -> bool:
        wanted = Counter[object](self.rows_of(epoch))
        return all(
            Counter(row for row in server.rows() if str(row).startswith(f"{epoch}-")) == wanted
            for server in self.servers
        )

    # Seen as it happens.

    def saw_file(self, name: str, content: bytes) -> None:
        """Rule 2 and the rules on places: called when a file of the ledger has come to be."""
        if not name.startswith("records/"):
            if self.contents.setdefault(name, content) != content:
                self.violate(f"{name} was written again with other content")
            return
        record = record_from_json(load_object(content))
        if self.contents.setdefault(name, content) != content:
            self._saw_pruned_key(record)
            return
        if isinstance(record, Void):
            self.records[record.key] = record
            return
        for other in self.records.values():
            if other.key.place == record.key.place and not isinstance(other, Void):
                self.violate(f"two records at {record.key} and {other.key}")
            if other.key.term == record.key.term and isinstance(other, Void):
                self.violate(f"{record.key} was written although its term has a void")
            if isinstance(record, Decision) and isinstance(other, Decision):
                if other.epoch == record.epoch:
                    self.violate(f"epoch {record.epoch} was decided twice")
                if (other.key.place < record.key.place) != (other.epoch < record.epoch):
                    self.violate(f"epochs do not grow: {other.key} and {record.key}")
        if isinstance(record, Decision) and record.completed_through is not None:
            for epoch in range(record.completed_through + 1):
                if not self.is_visible(epoch):
                    self.violate(f"{record.key} calls epoch {epoch} complete, which it is not")
        for share in record.shares:
            for prepared in share.prepared:
                if prepared.handle.name in self.aborted_by_us:
                    self.violate(f"{record.key} names {prepared.handle}, which we had aborted")
                if prepared.handle.name in self.named:
                    self.violate(f"{prepared.handle} is named twice")
                self.named.add(prepared.handle.name)
        self.records[record.key] = record

    def _saw_pruned_key(self, record: Record) -> None:
        """Somebody slept longer than the ledger remembers: no harm if nothing of it is open."""
        if isinstance(self.records.get(record.key), Void) and not isinstance(record, Void):
            self.violate(f"{record.key} was void, and is decided now")
        for share in () if isinstance(record, Void) else record.shares:
            for prepared in share.prepared:
                self.named.add(prepared.handle.name)
                if self._is_open(prepared.handle):
                    self.violate(f"{record.key} was settled before, and now names open ones")

    def _is_kept(self, handle: Handle) -> bool:
        return any(handle.name.encode() in content for content in self.store.files.values())

    def _is_open(self, handle: Handle) -> bool:
        return any(handle.name in server.open() for server in self.servers)

    def saw_commit(self, handle: Handle) -> None:
        """Rule 1."""
        if handle.name not in self.named:
            self.violate(f"{handle} is committed, and no record names it")

    def saw_abort(self, handle: Handle) -> None:
        """Rules 3 and 6."""
        if handle.name in self.named and (self._is_open(handle) or self._is_kept(handle)):
            self.violate(f"{handle} is aborted, and a record names it")
        self.aborted_by_us.add(handle.name)
        actor = current()
        if actor is not None and actor.phase == "task":
            return  # its own, for which it has not voted
        name = TransactionName.parse(handle.name)
        of_term = [record for key, record in self.records.items() if key.term == name.term]
        void = any(isinstance(record, Void) for record in of_term)
        past = any(
            not isinstance(record, Void) and record.key.place >= name.place for record in of_term
        )
        if not void and not past:
            self.violate(f"{handle} is aborted while it may still be decided")

    def check(self) -> None:
        """What has to hold between any two operations."""
        for server in self.servers:
            counted = Counter(server.rows())
            if counted and max(counted.values()) > 1:
                self.violate(f"rows twice: {[row for row, n in counted.items() if n > 1]}")
        for epoch in self.finished:
            if not self.is_visible(epoch):
                self.violate(f"the engine has finished epoch {epoch}, and it is not all visible")
        assert not self.violations, "\n".join(self.violations)

    def check_retention(self) -> None:
        """Called after a plan by the newest run."""
        records = [self.records[key] for key in self.ledger().record_keys()]
        kept = [record for record in records if not isinstance(record, Void)]
        newest = self.newest()
        retained = self.policy.retained_epochs
        allowed = retained + retained // 4 + 1 + (len(newest.amendments) if newest else 0)
        if len(kept) > allowed:
            self.violate(f"{len(kept)} records are kept, where {allowed} would do")
        # Two runs that close a term at once may both leave a void, for a while.
        past = max((record.key.place for record in records), default=0) - retained - retained // 4
        voids = Counter(
            record.key.term
            for record in records
            if isinstance(record, Void) and record.key.place < past
        )
        if voids and max(voids.values()) > 1:
            self.violate(f"more than one void in a term: {voids}")

    # What the adversary may do to it.

    def land(self, index: int) -> None:
        name, content = self.late.pop(index)
        if name not in self.store.files:
            self.store.files[name] = content
            self.saw_file(name, content)

    def forget(self, sink: int, handle: Handle) -> None:
        transaction = self.servers[sink].transactions[handle.name]
        if transaction.state is Verdict.PENDING:
            transaction.state = Verdict.ABORTED
        self.sinks[sink].forgotten.add(handle.name)

    def restore(self, index: int) -> None:
        """The operator puts an older state of the engine's part of the checkpoint back."""
        offsets, committed = self.snapshots[index]
        self.checkpoint.offsets = dict(offsets)
        self.checkpoint.committed = set(committed)
        self.late.clear()
        self.collected.clear()
        self.generation += 1
        newest = self.newest()
        self.restored_too_old = newest is not None and newest.epoch not in offsets


class WatchedStore(MemoryStore):
    """The ledger's disk: its creations may land late, and are witnessed."""

    def __init__(self, world: World) -> None:
        super().__init__(interfere=self._interfere)
        self._world = world

    def create(self, name: str, content: bytes) -> None:
        try:
            super().create(name, content)
        except Late:
            if name not in self.files:
                self._world.late.append((name, content))
            raise

    def _interfere(self, operation: str) -> None:
        kind, _, rest = operation.partition(" ")
        if kind == "create" and rest.endswith(" answered"):
            name = rest.removesuffix(" answered")
            self._world.saw_file(name, self.files[name])
        gate(operation)


class WatchedSink(MemorySink):
    """A store whose commits and aborts are witnessed."""

    def __init__(self, world: World, position: int) -> None:
        super().__init__(world.servers[position], f"memory-{position}", gate)
        self._world = world

    def commit(self, handle: Handle) -> None:
        self._world.saw_commit(handle)
        super().commit(handle)

    def abort(self, handle: Handle) -> None:
        self._world.saw_abort(handle)
        super().abort(handle)


class WatchedListener(EpochListener):
    """Keeps the number of the epoch, and checks that what is called complete is visible."""

    def __init__(self, world: World) -> None:
        self._world = world

    def on_epoch_complete(self, epoch: int) -> None:
        gate("listener")
        if not self._world.is_visible(epoch):
            self._world.violate(f"epoch {epoch} is called complete, and is not all visible")

    def snapshot(self, epoch: int) -> JsonValue:
        return epoch

    def restore(self, epoch: int, state: JsonValue) -> None:
        if state != epoch:
            self._world.violate(f"the snapshot of epoch {epoch} came back as {state!r}")
