"""The HBase sink: idempotent writes, with cell timestamps that are fixed per epoch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from assent.protocol.errors import ConfigurationError, InDoubtError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.hbase_rows import RowFormat
from assent.sinks.option import (
    Option,
    Parser,
    boolean,
    choice,
    columns,
    positive_integer,
    text,
    timeout,
)
from assent.sinks.ownership import FOREIGN, UNGUARDED

if TYPE_CHECKING:
    import pyarrow as pa

    # Need the library of the extra: whoever only names the sink does without it.
    from assent.sinks.hbase_connection import HBaseConnection
    from assent.sinks.hbase_owner import HBaseOwner
    from assent.sinks.hbase_transaction import HBaseTransaction

TRANSPORTS = ("buffered", "framed")
PROTOCOLS = ("binary", "compact")
# What HBase says where cells are kept for ever.
_FOR_EVER = 2**31 - 1


def _read_servers(given: str) -> tuple[tuple[str, int], ...]:
    found = set()
    for part in given.split(","):
        match = re.fullmatch(r"([^\s:/@]+):([0-9]{1,5})", part.strip())
        if match is None:
            raise ValueError
        found.add((match[1], int(match[2])))
    return tuple(sorted(found))


def _read_mapping(given: str) -> dict[str, str]:
    mapping = {}
    for part in given.split(","):
        name, equals, place = part.partition("=")
        if not (equals and name.strip() and re.fullmatch(r"[^:\s]+:[^\s]+", place.strip())):
            raise ValueError
        mapping[name.strip()] = place.strip()
    return mapping


_servers = Parser("host:port of Thrift servers, separated by commas", _read_servers)
_mapping = Parser("column=family:qualifier, separated by commas", _read_mapping)


class HBaseSink(Sink["HBaseTransaction"]):
    """Rows become rows of an HBase table, through its Thrift server.

    Tasks write directly, so rows are visible as they are written. Writing them again changes
    nothing, and what comes late is older and does not show: see docs/hbase.md.

    Parameters
    ----------
    servers
        `host:port` of the Thrift servers, separated by commas; any of them will do.
    table
        The table, which has to exist. The query owns it.
    key_columns
        What the row key is made of.
    column_family
        The family of all value columns that `column_mapping` does not name.
    value_columns
        Which columns become cells; by default all that no other option names.
    column_mapping
        From columns to `family:qualifier`.
    order_column, ordered_rows
        Which of several rows of one key in one task counts, the one with the highest value; and
        how many keys a task may then hold in memory.
    delete_column
        A boolean column; where it is true, the row is removed.
    registry_table
        Where it is noted whose a table is; created if it is missing.
    transport, protocol
        As the Thrift server is set up.
    allow_complete
        Accept complete mode: rows that leave the result stay in HBase.
    take_over
        The owner, as the refusal names it, in whose place this query goes on.
    timeout
        Seconds for which HBase may be away before a task fails.
    """

    kind: ClassVar[str] = "hbase"

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("servers", _servers, description="host:port of the Thrift servers"),
        Option("table", text, description="the table, which has to exist"),
        Option("keyColumns", columns, (), "columns that make the row key"),
        Option("columnFamily", text, "cf", "the family of the value columns"),
        Option("valueColumns", columns, (), "columns that become cells"),
        Option("columnMapping", _mapping, {}, "columns that go elsewhere than columnFamily"),
        Option("orderColumn", text, None, "of rows of one key in a task, the highest counts"),
        Option("orderedRows", positive_integer, 200_000, "keys that a task may hold in memory"),
        Option("deleteColumn", text, None, "boolean column: where true, the row is removed"),
        Option("registryTable", text, "assent", "where it is noted whose a table is"),
        Option("transport", choice(*TRANSPORTS), "buffered", "of the Thrift server"),
        Option("protocol", choice(*PROTOCOLS), "binary", "of the Thrift server"),
        Option("allowComplete", boolean, False, "complete mode: rows that leave the result stay"),
        Option("takeOver", text, None, "the owner in whose place this query goes on"),
        Option("timeout", timeout, 60.0, "how long HBase may be away"),
    )

    def __init__(
        self,
        servers: str | Sequence[tuple[str, int]],
        table: str,
        key_columns: Sequence[str] = (),
        column_family: str = "cf",
        value_columns: Sequence[str] = (),
        column_mapping: Mapping[str, str] | None = None,
        order_column: str | None = None,
        ordered_rows: int = 200_000,
        delete_column: str | None = None,
        registry_table: str = "assent",
        transport: str = "buffered",
        protocol: str = "binary",
        allow_complete: bool = False,
        take_over: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        _require_library()
        if isinstance(servers, str):
            try:
                servers = _read_servers(servers)
            except ValueError:
                raise ConfigurationError(
                    f"option servers is {servers!r}; expected {_servers.allowed}"
                ) from None
        if table == registry_table:
            raise ConfigurationError(
                f"options table and registryTable are both {table!r}; give each its own"
            )
        self.servers = tuple(servers)
        self.table = table
        self.row_format = RowFormat(
            tuple(key_columns),
            column_family,
            tuple(value_columns),
            dict(column_mapping or {}),
            order_column,
            delete_column,
        )
        self.ordered_rows = ordered_rows
        self.registry_table = registry_table
        self.transport = transport
        self.protocol = protocol
        self.allow_complete = allow_complete
        self.take_over = take_over
        self.timeout = timeout

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> HBaseSink:
        """The sink for what `read_options` made of `OPTIONS`."""
        return cls(
            servers=values["servers"],
            table=values["table"],
            key_columns=values["keyColumns"],
            column_family=values["columnFamily"],
            value_columns=values["valueColumns"],
            column_mapping=values["columnMapping"],
            order_column=values["orderColumn"],
            ordered_rows=values["orderedRows"],
            delete_column=values["deleteColumn"],
            registry_table=values["registryTable"],
            transport=values["transport"],
            protocol=values["protocol"],
            allow_complete=values["allowComplete"],
            take_over=values["takeOver"],
            timeout=values["timeout"],
        )

    def __repr__(self) -> str:
        return f"HBaseSink({self.target!r})"

    @property
    def target(self) -> str:
        where = ",".join(f"{host}:{port}" for host, port in self.servers)
        return f"{where} table {self.table}"

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask rows and tables; create the registry if it is missing."""
        from assent.sinks.hbase_owner import FAMILY

        if overwrite and not self.allow_complete:
            raise ConfigurationError(
                "complete mode replaces the whole result, and rows that leave it would stay in "
                "HBase; set option allowComplete to true if none leaves it or they may stay, or "
                "use update mode with foreachBatch"
            )
        self.row_format.check(schema)
        with self._connect() as connection:
            families = connection.families(self.table)
            if families is None:
                raise ConfigurationError(
                    f"option table is {self.table!r}, and there is no such table at {connection}; "
                    "create it first"
                )
            for family in self.row_format.families(schema):
                if family not in families:
                    raise ConfigurationError(
                        f"table {self.table!r} has no family {family!r} (it has "
                        f"{', '.join(sorted(families))}); add it, or set option columnFamily or "
                        "columnMapping"
                    )
            if connection.families(self.registry_table) is None:
                connection.create_table(self.registry_table, FAMILY)
            owned = self._owner(connection).read() is not None
            if not owned and self.take_over != FOREIGN and connection.has_rows(self.table):
                raise ConfigurationError(
                    f"table {self.table!r} at {connection} has rows that no query of Assent has "
                    "written; write to another table, empty it, or, if rows of equal keys shall "
                    f"overwrite them, set option takeOver to {FOREIGN}"
                )

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> HBaseTransaction:
        from assent.sinks.hbase_transaction import HBaseTransaction

        connection = self._connect()
        try:
            owner = self._owner(connection)
            guarded = self._exactly_once
            claim = owner.claim(
                name.identity if guarded else UNGUARDED,
                epoch if guarded else 0,
                name.term if guarded else 0,
                self.take_over,
                lambda: _lifetime(connection.families(self.table) or {}),
            )
            ordered = None if self.row_format.order_column is None else self.ordered_rows
            return HBaseTransaction(name, claim, connection, owner, self.table, guarded, ordered)
        except BaseException:
            connection.close()
            raise

    def write(self, transaction: HBaseTransaction, batch: pa.RecordBatch) -> None:
        transaction.write(self.row_format.rows(batch))

    def pre_commit(self, transaction: HBaseTransaction) -> Handle:
        transaction.finish()
        transaction.connection.close()
        claim = transaction.claim
        details = {
            "target": self.target,
            "base": str(claim.base),
            "epoch": str(claim.epoch),
            "timestamp": str(claim.timestamp),
        }
        return Handle(self.kind, str(transaction.name), details)

    def discard(self, transaction: HBaseTransaction) -> None:
        transaction.connection.close()

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        """Nothing is left to do, if the table is still this query's."""
        if self._exactly_once and self.verdict(handle) is not Verdict.COMMITTED:
            raise InDoubtError(f"the table of {handle} is no longer this query's, or was emptied")

    def abort(self, handle: Handle) -> None:
        """Rows stay as they are until the epoch is written again."""
        self._parts(handle)

    def verdict(self, handle: Handle) -> Verdict:
        parts = self._parts(handle)
        with self._connect() as connection:
            return self._owner(connection).verdict(*parts)

    def pending(self, identity: str) -> Iterable[Pending]:
        """Nothing: a task's rows are there for good as soon as they are written."""
        return []

    # Inside.

    @property
    def _exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def _connect(self) -> HBaseConnection:
        from assent.sinks.hbase_connection import HBaseConnection

        return HBaseConnection(self.servers, self.transport, self.protocol, self.timeout)

    def _owner(self, connection: HBaseConnection) -> HBaseOwner:
        from assent.sinks.hbase_owner import HBaseOwner

        return HBaseOwner(connection, self.registry_table, self.table)

    def _parts(self, handle: Handle) -> tuple[str, int, int]:
        if handle.kind != self.kind or handle.details.get("target", self.target) != self.target:
            raise ConfigurationError(
                f"handle {handle} belongs to another sink than the HBase sink of {self.target}"
            )
        try:
            details, name = handle.details, TransactionName.parse(handle.name)
            return name.identity, int(details["base"]), int(details["epoch"])
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"handle {handle} does not say what it stands for ({error}); use the handle that "
                "the ledger holds"
            ) from None


def _lifetime(families: Mapping[str, int]) -> float | None:
    """How long cells live at least, in seconds; None for ever."""
    shortest = min(families.values(), default=_FOR_EVER)
    return None if shortest <= 0 or shortest >= _FOR_EVER else float(shortest)


def _require_library() -> None:
    if importlib.util.find_spec("happybase") is None:
        raise ImportError("the HBase sink needs happybase: pip install 'assent[hbase]'")
