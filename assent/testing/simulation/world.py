"""Everything that outlives a process, and the settings of one history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import assent.ledger.ledger
import assent.protocol.fingerprint
import assent.protocol.name
from assent.ledger.ledger import Ledger
from assent.ledger.store import RecordStore
from assent.protocol.coordinator import Coordinator
from assent.protocol.fingerprint import sums_of_rows
from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue
from assent.protocol.listener import EpochListener
from assent.protocol.parallel import AtOnce, one_by_one
from assent.protocol.policy import OnTimeout, Policy
from assent.protocol.sink import Sink
from assent.testing.simulation.broker import Broker, BrokerSink
from assent.testing.simulation.checkpoint import SparkCheckpoint
from assent.testing.simulation.choices import Choices
from assent.testing.simulation.database import Database, DatabaseSink
from assent.testing.simulation.disk import ROOT, Disk, mounted
from assent.testing.simulation.network import Network
from assent.testing.simulation.records import DiskStore, ObjectStore
from assent.testing.simulation.scheduler import Aside, Scheduler
from assent.testing.simulation.witness import Witness

START = 1_000_000_000.0
BROKER_TIMEOUT = 900.0
LEDGERS = ("objects", "objects", "disk")
STORES = ("broker 2", "broker 1", "broker 0", "broker last", "database", "database", "forgetful")
HAZARDS = ("none", "none", "none", "none", "restore", "replay", "replay")
"""At most one of those that may end a history in an error that only an operator can mend."""
TIMEOUTS = (*(OnTimeout.REWRITE,) * 3, OnTimeout.FAIL, OnTimeout.IGNORE)


@dataclass(frozen=True)
class Setting:
    """What a history is about."""

    ledger: str = "objects"
    stores: tuple[str, ...] = ("broker 2",)
    hazard: str = "none"
    on_timeout: OnTimeout = OnTimeout.REWRITE
    retained: int = 100
    terms_kept: int = 100
    one_process: bool = False
    abort_after_commit: bool = True
    at_once: bool = False
    input_seed: int = 0
    tasks: int | None = None
    """The number of tasks in each epoch, each with one row; None for what the seed says."""
    ahead: bool = False
    """Whether processes outlive their tasks, and initialise ids of Kafka ahead of need."""
    untold: int = 0
    """Of so many transactions, the first ones, Kafka does not tell readers how they ended."""

    @classmethod
    def draw(cls, choices: Choices) -> Setting:
        stores = [choices.one_of(STORES)]
        if choices.pick(4) == 3:
            stores.append(choices.one_of(STORES))
        return cls(
            choices.one_of(LEDGERS),
            tuple(stores),
            choices.one_of(HAZARDS),
            choices.one_of(TIMEOUTS),
            choices.one_of((100, 3, 2)),
            choices.one_of((100, 1)),
            choices.pick(2) == 1,
            choices.pick(2) == 0,
            choices.pick(2) == 1,
            choices.pick(15),
            ahead=choices.pick(2) == 1,
            untold=choices.one_of((0, 0, 1, 2, 5)),
        )


class World:
    """Stores, ledger, checkpoint, network, disk and time."""

    def __init__(self, setting: Setting, choices: Choices) -> None:
        self.setting = setting
        self.choices = choices
        self.now = START
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler)
        self.witness = Witness(len(setting.stores), self.rows_of)
        self.checkpoint = SparkCheckpoint(self.network)
        self.policy = Policy(setting.retained, commit_timeout=1.0, on_timeout=setting.on_timeout)
        self.witness.policy = self.policy
        self.listener = WatchedListener(self)
        self.stores: list[Broker | Database] = []
        self.sinks: list[Sink[Any]] = []
        for position, kind in enumerate(setting.stores):
            self._add_store(position, kind)
        self.objects = ObjectStore(self.network, self.witness)
        self.disk: Disk | None = None
        if setting.ledger == "disk":
            self.disk = disk = Disk(self.scheduler, self._appeared)
            self.witness.is_flushed = lambda name: (
                disk.find(f"{ROOT}/{name}") is None or disk.is_durable(f"{ROOT}/{name}")
            )
        self.is_quiet = False
        self.generation = 0
        self.restored_too_old = False
        self.snapshots: list[tuple[dict[int, str], set[int]]] = []

    def _add_store(self, position: int, kind: str) -> None:
        network, witness, scheduler = self.network, self.witness, self.scheduler
        if kind.startswith("broker"):
            last = kind == "broker last"
            version = 2 if last else int(kind[-1])
            broker = Broker(witness, position, version, BROKER_TIMEOUT, 32765 if last else 0)
            broker.leaves_out = self.setting.untold
            # A committing process that dies alone takes with it what it has aborted.
            broker.leaves_aborts_out = self.setting.one_process
            self.stores.append(broker)
            self.sinks.append(
                BrokerSink(
                    broker,
                    network,
                    witness,
                    position,
                    lambda: self.now,
                    lambda: scheduler.current,
                    self.setting.ahead,
                )
            )
        else:
            database = Database(witness, keeps_witnesses=kind == "database")
            self.stores.append(database)
            self.sinks.append(
                DatabaseSink(database, network, witness, position, lambda: scheduler.current)
            )

    def _appeared(self, path: str, content: bytes) -> None:
        name = path.removeprefix(f"{ROOT}/")
        if not name.startswith("."):
            self.witness.saw_file(name, content)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, chance, the ledger's disk and its patience are simulated."""
        with ExitStack() as undo:
            if self.disk is not None:
                undo.enter_context(mounted(self.disk))
            for module, name, replacement in (
                (assent.protocol.name, "secrets", self),
                (assent.ledger.ledger, "TERMS_KEPT", self.setting.terms_kept),
                (assent.protocol.fingerprint, "sums_of_rows", _sums_of_rows),
            ):
                undo.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, replacement)
            yield

    def token_hex(self, count: int) -> str:
        """In place of the module `secrets`: nobody else draws the same."""
        actor = self.scheduler.current
        if actor is None:
            return "0" * 2 * count
        actor.drawn += 1
        return f"{hash_of(actor.name):012x}{actor.drawn:04x}"

    def record_store(self) -> RecordStore:
        return self.objects if self.disk is None else DiskStore(self.disk, self.witness)

    def ledger(self, skew: float = 0.0) -> Ledger:
        return Ledger(self.record_store(), lambda: self.now + skew)

    def ledger_files(self) -> dict[str, bytes]:
        """The ledger's files as processes see them, by name."""
        if self.disk is None:
            return dict(self.objects.files)
        found = {}
        for folder in ("identities", "terms", "records"):
            for name, content in self.disk.files(f"{ROOT}/{folder}").items():
                found[f"{folder}/{name}"] = content
        return found

    def coordinator(self, skew: float) -> Coordinator:
        scheduler = self.scheduler
        return Coordinator(
            self.ledger(skew),
            self.sinks,
            self.checkpoint,
            self.policy,
            [self.listener],
            clock=lambda: self.now + skew,
            sleep=self.sleep,
            parallel=scheduler.at_once if self.setting.at_once else one_by_one,
            later=Aside(scheduler) if self.setting.at_once else AtOnce(),
        )

    def sleep(self, seconds: float) -> None:
        self.scheduler.point("sleep", False)
        self.now += seconds

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for store in self.stores:
            store.pass_time(self.now)

    def forgotten(self) -> list[Handle]:
        """The decided transactions of which a store cannot tell how they ended."""
        found = []
        for transaction in self.witness.transactions.values():
            store, sink = self.stores[transaction.sink], self.sinks[transaction.sink]
            if self.witness.is_named(transaction.handle) and store.has_forgotten(transaction):
                found.append(Handle(sink.kind, transaction.handle))
        return found

    def speculates(self) -> bool:
        """Whether a task gets a second attempt while the first is under way."""
        return not self.is_quiet and self.choices.pick(6) == 5

    # The input: the same rows of an epoch, however they are spread over tasks.

    def rows_of(self, epoch: int) -> list[int]:
        count = self.setting.tasks or (epoch * 3 + self.setting.input_seed + 3) % 5
        return [epoch * 100 + number for number in range(count)]

    def tasks_of(self, epoch: int) -> int:
        return self.setting.tasks or 1 + (epoch * 2 + self.setting.input_seed + 2) % 3

    def snapshot(self) -> None:
        self.snapshots.append((dict(self.checkpoint.offsets), set(self.checkpoint.committed)))

    def restore(self, index: int) -> None:
        """The operator puts an older state of the engine's part of the checkpoint back."""
        offsets, committed = self.snapshots[index]
        self.checkpoint.offsets, self.checkpoint.committed = dict(offsets), set(committed)
        self.network.lose()
        self.generation += 1
        newest = self.witness.newest()
        self.restored_too_old = newest is not None and newest.epoch not in offsets

    def cut_power(self) -> None:
        """Of the ledger's disk, and of Spark's part of the checkpoint on it."""
        if self.disk is None:
            return
        before = self.ledger_files()
        self.disk.cut_power(self.choices)
        self.witness.saw_power_cut(before, self.ledger_files())
        newest = max(self.checkpoint.offsets, default=None)
        # Spark does not flush its commit log. Its offset log has to survive: see the docs.
        if newest in self.checkpoint.committed and self.choices.pick(2):
            self.checkpoint.committed.discard(newest)


_known_sums: dict[tuple[int, ...], tuple[int, int, int]] = {}


def _sums_of_rows(batch: Any) -> tuple[int, int, int]:
    """Worked out once for the same rows: there are few."""
    rows = tuple(batch.column(0).to_pylist())
    if rows not in _known_sums:
        _known_sums[rows] = sums_of_rows(batch)
    return _known_sums[rows]


def hash_of(text: str) -> int:
    """A number of 48 bits that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


class WatchedListener(EpochListener):
    """Keeps the number of the epoch, and checks that what is called complete is visible."""

    def __init__(self, world: World) -> None:
        self._world = world

    def on_epoch_complete(self, epoch: int) -> None:
        self._world.scheduler.point("listener", False)
        self._world.witness.check_finished(epoch, "called complete:")

    def snapshot(self, epoch: int) -> JsonValue:
        return epoch

    def restore(self, epoch: int, state: JsonValue) -> None:
        if state != epoch:
            self._world.witness.violate(f"the snapshot of epoch {epoch} came back as {state!r}")
