"""What a task has under way in Redis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from assent.protocol.errors import RetriableError
from assent.protocol.name import TransactionName
from assent.sinks.redis_nodes import Place, RedisNodes, ScriptCall, slot_of, slot_tags
from assent.sinks.redis_owner import Claim
from assent.sinks.redis_rows import Row
from assent.sinks.redis_script import WRITE, version

_CALL_ROWS = 500
_CALL_BYTES = 1 << 20
_PIPELINE_ROWS = 50_000
_PIPELINE_BYTES = 8 << 20
# Since then a client can wait until what it wrote is on disk.
WAITS_FOR_DISK = (7, 2)


@dataclass
class _Group:
    """Rows that go into one call."""

    rows: list[Row] = field(default_factory=list)
    size: int = 0


@dataclass
class RedisTransaction:
    """Writes rows, guarded by fences.

    A fence is a key with the highest version (base, epoch, run) that was written beside it: one
    for all keys of a single server, one for each slot of a cluster. A call compares it, raises
    it and writes its rows in one act, so a late writer changes nothing where a newer one wrote.
    """

    name: TransactionName
    claim: Claim
    nodes: RedisNodes
    prefix: str
    structure: str
    ttl: float | None
    sync: bool
    """Whether rows have to be on disk before the vote."""
    replicas: int
    timeout: float
    _runs: dict[Place, str] = field(default_factory=dict)
    _slots: set[int] = field(default_factory=set)
    _groups: dict[int, _Group] = field(default_factory=dict)
    _calls: list[ScriptCall] = field(default_factory=list)
    _waiting: int = 0
    _waiting_bytes: int = 0

    def __post_init__(self) -> None:
        self._version = version(self.claim.base, self.claim.epoch, self.name.term)
        self._head = (
            self._version,
            self.structure.encode(),
            b"" if self.ttl is None else b"%d" % round(self.ttl * 1000),
        )
        self._spread = self.nodes.is_cluster
        for place in self.nodes.places():
            self._runs[place] = self._run_id(place)

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows. For a cluster some may wait, so that a slot's rows share a call."""
        for row in rows:
            slot = slot_of(row.key) if self._spread else 0
            group = self._groups.setdefault(slot, _Group())
            size = row.size
            group.rows.append(row)
            group.size += size
            self._waiting += 1
            self._waiting_bytes += size
            if len(group.rows) >= _CALL_ROWS or group.size >= _CALL_BYTES:
                self._calls.append(self._call(slot, self._groups.pop(slot).rows))
            if self._waiting >= _PIPELINE_ROWS or self._waiting_bytes >= _PIPELINE_BYTES:
                self._flush()
        if not self._spread:
            self._flush()

    def finish(self) -> None:
        """Everything is written, and as durable as it was asked for where it is.

        A server that was restarted or replaced since the task began may have lost what it had
        answered for: the task then has to write again.
        """
        self._flush()
        for place, slot in {self._place(slot): slot for slot in self._slots}.items():
            self._settle(place, slot)
            if self._runs.get(place) != self._run_id(place):
                raise RetriableError(
                    f"the Redis at {place[0]}:{place[1]} was restarted or replaced while a task "
                    "was writing, and may have lost rows; they have to be written again"
                )

    # Inside.

    def _flush(self) -> None:
        """When it returns, the servers have answered for all rows."""
        groups, calls = self._groups, self._calls
        self._groups, self._calls, self._waiting, self._waiting_bytes = {}, [], 0, 0
        calls += [self._call(slot, group.rows) for slot, group in groups.items()]
        if calls:
            self.nodes.run_all(calls)

    def _call(self, slot: int, rows: list[Row]) -> ScriptCall:
        self._slots.add(slot)
        arguments = list(self._head)
        for row in rows:
            arguments.append(row.note)
            arguments += row.arguments
        guards = [self._guard(b"fence", slot), self._guard(b"order", slot)]
        return ScriptCall(WRITE, [*guards, *(row.key for row in rows)], arguments)

    def _guard(self, what: bytes, slot: int) -> bytes:
        tag = b"{%b}:" % slot_tags()[slot] if self._spread else b""
        return b"assent:%b:%b%b" % (what, tag, self.prefix.encode())

    def _place(self, slot: int) -> Place:
        return self.nodes.place(self._guard(b"fence", slot))

    def _settle(self, place: Place, slot: int) -> None:
        """Write the fence once more, and wait for it: all that came before is then safe too."""
        to_disk = 1 if self.sync and self._version_of(place) >= WAITS_FOR_DISK else 0
        milliseconds = round(self.timeout * 500)
        seal = self._call(slot, [])
        if to_disk:
            done = self.nodes.run_then(seal, "WAITAOF", to_disk, self.replicas, milliseconds)
        elif self.replicas:
            done = [0, self.nodes.run_then(seal, "WAIT", self.replicas, milliseconds)]
        else:
            return
        if done[0] < to_disk or done[1] < self.replicas:
            raise RetriableError(
                f"the Redis at {place[0]}:{place[1]} has not flushed a task's rows in time "
                f"(on disk: {done[0]}, on replicas: {done[1]} of {self.replicas})"
            )

    def _run_id(self, place: Place) -> str:
        return str(self.nodes.ask(place, "INFO", "server")["run_id"])

    def _version_of(self, place: Place) -> tuple[int, ...]:
        return server_version(self.nodes.ask(place, "INFO", "server"))


def server_version(info: dict[str, object]) -> tuple[int, ...]:
    """The version of a server, as far as it consists of numbers."""
    parts = str(info["redis_version"]).split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
