"""The Redis sink: idempotent writes, guarded on the server by epoch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from assent.protocol.errors import ConfigurationError, TornEpochError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.option import (
    Option,
    boolean,
    choice,
    columns,
    duration,
    positive_integer,
    text,
    timeout,
)
from assent.sinks.ownership import UNGUARDED
from assent.sinks.redis_rows import STRUCTURES, RowFormat

if TYPE_CHECKING:
    import pyarrow as pa

    # Needs the library of the extra: whoever only names the sink does without it.
    from assent.sinks.redis_nodes import RedisNodes
    from assent.sinks.redis_owner import Claim, RedisOwner
    from assent.sinks.redis_transaction import RedisTransaction

DURABILITIES = ("fsync", "memory")


class RedisSink(Sink["RedisTransaction"]):
    """Rows become hashes, strings, JSON texts or members of sorted sets, by key.

    Tasks write directly, so rows are visible as they are written. Writing them again changes
    nothing, and a late writer of an older epoch is refused: see docs/redis.md.

    Parameters
    ----------
    url
        `redis://host:port/db`, or `rediss://…` for TLS; several for a cluster.
    key_prefix
        What all keys begin with. The query owns every key that does.
    structure
        `hash`, `string`, `json` or `sortedSet`.
    key_columns, value_columns
        What key and value are made of; by default the value is of all other columns.
    member_column, score_column
        With `sortedSet`.
    order_column
        Which of several rows of one key in one epoch counts: the one with the highest value.
    delete_column
        A boolean column; where it is true, the key (the member) is removed.
    ttl, expire_at_column
        Seconds until a key expires, from its last write; or a timestamp column with the instant.
    user, password
        For those who do not want them in the URL.
    durability
        `fsync`: what a task has voted for is on disk. `memory`: a crash of the server may lose it.
    replicas
        How many replicas must have a task's rows before it votes.
    allow_eviction
        Accept a server that evicts keys.
    allow_complete
        Accept complete mode: rows that leave the result stay in Redis.
    take_over
        The owner, as the refusal names it, in whose place this query goes on.
    timeout
        Seconds for which a server may be away before a task fails.
    """

    kind: ClassVar[str] = "redis"

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("url", text, description="redis://host:port/db", secret=True),
        Option("keyPrefix", text, description="what all keys begin with, such as views:"),
        Option("structure", choice(*STRUCTURES), "hash", "what a row becomes"),
        Option("keyColumns", columns, (), "columns that make the key"),
        Option("valueColumns", columns, (), "columns that make the value"),
        Option("memberColumn", text, None, "sortedSet: the column of the member"),
        Option("scoreColumn", text, None, "sortedSet: the column of the score"),
        Option("orderColumn", text, None, "of rows of one key in an epoch, the highest counts"),
        Option("deleteColumn", text, None, "boolean column: where true, the key is removed"),
        Option("ttl", duration, None, "when a key expires, after its last write"),
        Option("expireAtColumn", text, None, "timestamp column: when the key expires"),
        Option("user", text, None, "the user to log in as"),
        Option("password", text, None, "the password", secret=True),
        Option("durability", choice(*DURABILITIES), "fsync", "what a vote stands for"),
        Option("replicas", positive_integer, 0, "replicas that must have a task's rows"),
        Option("allowEviction", boolean, False, "accept a server that evicts keys"),
        Option("allowComplete", boolean, False, "complete mode: rows that leave the result stay"),
        Option("takeOver", text, None, "the owner in whose place this query goes on"),
        Option("timeout", timeout, 30.0, "how long a server may be away"),
    )

    def __init__(
        self,
        url: str,
        key_prefix: str,
        structure: str = "hash",
        key_columns: Sequence[str] = (),
        value_columns: Sequence[str] = (),
        member_column: str | None = None,
        score_column: str | None = None,
        order_column: str | None = None,
        delete_column: str | None = None,
        ttl: float | None = None,
        expire_at_column: str | None = None,
        user: str | None = None,
        password: str | None = None,
        durability: str = "fsync",
        replicas: int = 0,
        allow_eviction: bool = False,
        allow_complete: bool = False,
        take_over: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        _require_library()
        from assent.sinks.redis_address import parse_addresses

        if not key_prefix or key_prefix.startswith("assent:"):
            raise ConfigurationError(
                f"option keyPrefix is {key_prefix!r}; expected a text of your own, such as views:, "
                "that does not begin with assent:"
            )
        for option, value, allowed in (
            ("structure", structure, STRUCTURES),
            ("durability", durability, DURABILITIES),
        ):
            if value not in allowed:
                raise ConfigurationError(
                    f"option {option} is {value!r}; expected one of {', '.join(allowed)}"
                )
        if ttl is not None and expire_at_column is not None:
            raise ConfigurationError("options ttl and expireAtColumn are both set; set one of them")
        self._addresses = parse_addresses(url, user, password)
        self.row_format = RowFormat(
            key_prefix,
            structure,
            tuple(key_columns),
            tuple(value_columns),
            member_column,
            score_column,
            order_column,
            delete_column,
            expire_at_column,
        )
        self.ttl = ttl
        self.durability = durability
        self.replicas = replicas
        self.allow_eviction = allow_eviction
        self.allow_complete = allow_complete
        self.take_over = take_over
        self.timeout = timeout

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> RedisSink:
        """The sink for what `read_options` made of `OPTIONS`."""
        return cls(
            url=values["url"],
            key_prefix=values["keyPrefix"],
            structure=values["structure"],
            key_columns=values["keyColumns"],
            value_columns=values["valueColumns"],
            member_column=values["memberColumn"],
            score_column=values["scoreColumn"],
            order_column=values["orderColumn"],
            delete_column=values["deleteColumn"],
            ttl=values["ttl"],
            expire_at_column=values["expireAtColumn"],
            user=values["user"],
            password=values["password"],
            durability=values["durability"],
            replicas=values["replicas"],
            allow_eviction=values["allowEviction"],
            allow_complete=values["allowComplete"],
            take_over=values["takeOver"],
            timeout=values["timeout"],
        )

    def __repr__(self) -> str:
        return f"RedisSink({self.target!r})"

    @property
    def target(self) -> str:
        return f"{','.join(map(str, self._addresses))} {self.row_format.key_prefix}*"

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask rows and servers, and look for keys that others have written."""
        from assent.sinks.redis_check import check_server, check_unowned

        if overwrite and not self.allow_complete:
            raise ConfigurationError(
                "complete mode replaces the whole result, and rows that leave it would stay in "
                "Redis; set option allowComplete to true if none leaves it or they may stay, or "
                "use update mode with foreachBatch"
            )
        self.row_format.check(schema)
        with self._connect() as nodes:
            check_server(
                nodes,
                exactly_once=self._exactly_once,
                durability=self.durability,
                replicas=self.replicas,
                allow_eviction=self.allow_eviction,
            )
            owner = self._owner(nodes)
            check_unowned(nodes, owner, self.row_format.key_prefix, self.take_over)

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> RedisTransaction:
        from assent.sinks.redis_transaction import RedisTransaction

        nodes = self._connect()
        try:
            owner = self._owner(nodes)
            if self._exactly_once:
                claim = owner.claim(name.identity, epoch, name.term, self.take_over)
            else:
                # No ledger, no order of epochs: each write counts as it comes.
                claim = owner.claim(UNGUARDED, 0, 0, self.take_over)
            return RedisTransaction(
                name,
                claim,
                nodes,
                self.row_format.key_prefix,
                self.row_format.structure,
                self.ttl,
                sync=self.durability == "fsync" and self.guarantee is not Guarantee.NONE,
                replicas=0 if self.guarantee is Guarantee.NONE else self.replicas,
                timeout=self.timeout,
            )
        except BaseException:
            nodes.close()
            raise

    def write(self, transaction: RedisTransaction, batch: pa.RecordBatch) -> None:
        transaction.write(self.row_format.rows(batch))

    def pre_commit(self, transaction: RedisTransaction) -> Handle:
        transaction.finish()
        claim = transaction.claim
        if self._exactly_once:
            self._owner(transaction.nodes).vote(claim, str(transaction.name))
        transaction.nodes.close()
        details = {"target": self.target, "base": str(claim.base), "epoch": str(claim.epoch)}
        return Handle(self.kind, str(transaction.name), details)

    def discard(self, transaction: RedisTransaction) -> None:
        transaction.nodes.close()

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        """Nothing is left to do, if the store still has what the task voted for."""
        if self._exactly_once and self.verdict(handle) is not Verdict.COMMITTED:
            raise TornEpochError(f"Redis no longer holds the vote of {handle}")

    def abort(self, handle: Handle) -> None:
        """Forget the vote. Rows stay as they are until the epoch is written again."""
        if self._exactly_once:
            self._claim(handle)
            with self._connect() as nodes:
                self._owner(nodes).withdraw(handle.name)

    def verdict(self, handle: Handle) -> Verdict:
        claim = self._claim(handle)
        with self._connect() as nodes:
            return self._owner(nodes).verdict(claim, handle.name)

    def pending(self, identity: str) -> Iterable[Pending]:
        """Nothing: a task's rows are there for good as soon as they are written."""
        return []

    # Inside.

    @property
    def _exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def _connect(self) -> RedisNodes:
        from assent.sinks.redis_nodes import RedisNodes

        return RedisNodes(self._addresses, self.timeout)

    def _owner(self, nodes: RedisNodes) -> RedisOwner:
        from assent.sinks.redis_owner import RedisOwner

        return RedisOwner(nodes, self.row_format.key_prefix)

    def _claim(self, handle: Handle) -> Claim:
        from assent.sinks.redis_owner import Claim

        if handle.kind != self.kind or handle.details.get("target", self.target) != self.target:
            raise ConfigurationError(
                f"handle {handle} belongs to another sink than the Redis sink of {self.target}"
            )
        try:
            details, name = handle.details, TransactionName.parse(handle.name)
            return Claim(name.identity, int(details["base"]), int(details["epoch"]))
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"handle {handle} does not say what it stands for ({error}); use the handle that "
                "the ledger holds"
            ) from None


def _require_library() -> None:
    if importlib.util.find_spec("redis") is None:
        raise ImportError("the Redis sink needs redis: pip install 'assent[redis]'")
