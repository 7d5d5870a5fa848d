"""Connections to a Redis: to one server, or to the primaries of a cluster."""

from __future__ import annotations

import binascii
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from assent.protocol.errors import AssentError, ConfigurationError, FencedError, RetriableError
from assent.sinks.redis_address import RedisAddress
from assent.sinks.redis_script import FENCED

SLOTS = 16384

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_REFUSED = (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    NoPermissionError,
)
# A server that is away, starts, or has handed a slot or its role to another one.
_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    AskError,
    TryAgainError,
    ClusterDownError,
)

Result = TypeVar("Result")
Place = tuple[str, int]


@dataclass(frozen=True)
class ScriptCall:
    """A script on keys that all lie in one slot, that of `keys[0]`."""

    script: str
    keys: Sequence[bytes]
    arguments: Sequence[bytes]

    def command(self) -> list[Any]:
        return ["EVALSHA", _digest(self.script), len(self.keys), *self.keys, *self.arguments]


class RedisNodes:
    """The servers behind addresses, of which any leads to the others in a cluster.

    What fails in passing is tried again for `timeout` seconds: everything that is sent through
    here may be sent twice. Any other failure is an error of Assent's, without secrets.
    """

    def __init__(self, addresses: Sequence[RedisAddress], timeout: float) -> None:
        self._addresses = addresses
        self._timeout = timeout
        self._clients: dict[Place, redis.Redis] = {}
        self._slots: list[Place] = []
        self._alone: Place | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        for client in self._clients.values():
            client.close()
        self._clients, self._slots, self._alone = {}, [], None

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over slots."""
        return self._trying(lambda: self._find() is None)

    def places(self) -> list[Place]:
        """All primaries."""

        def attempt() -> list[Place]:
            alone = self._find()
            return sorted(set(self._slots)) if alone is None else [alone]

        return self._trying(attempt)

    def place(self, key: bytes) -> Place:
        """The server that holds the key now."""
        return self._trying(lambda: self._place(key))

    def ask(self, place: Place, *command: Any) -> Any:
        """One command of one server."""
        return self._trying(lambda: self._client(place).execute_command(*command))

    def ask_about(self, key: bytes, *command: Any) -> Any:
        """One command of the server that holds the key."""
        return self._trying(lambda: self._client(self._place(key)).execute_command(*command))

    def run(self, call: ScriptCall) -> Any:
        """One script."""
        return self.run_all([call])[0]

    def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Scripts, pipelined to each server, in their order; returns their answers.

        If one fails in passing, those of its server are all sent again, so that a later one never
        comes before an earlier one.
        """
        answers: dict[int, Any] = {}

        def attempt() -> None:
            waiting: dict[Place, list[int]] = {}
            for number, call in enumerate(calls):
                if number not in answers:
                    waiting.setdefault(self._place(call.keys[0]), []).append(number)
            for place, numbers in waiting.items():
                found = self._pipeline(place, [calls[number] for number in numbers])
                answers.update(zip(numbers, found, strict=True))

        self._trying(attempt)
        return [answers[number] for number in range(len(calls))]

    def run_then(self, call: ScriptCall, *command: Any) -> Any:
        """A script, and behind it on the same connection a command; returns its answer."""
        return self._trying(lambda: self._pipeline(self._place(call.keys[0]), [call], command)[-1])

    # Inside.

    def _pipeline(
        self, place: Place, calls: Sequence[ScriptCall], command: Sequence[Any] = ()
    ) -> list[Any]:
        client = self._client(place)
        for loaded in (False, True):
            pipeline = client.pipeline(transaction=False)
            for call in calls:
                pipeline.execute_command(*call.command())
            if command:
                pipeline.execute_command(*command)
            found: list[Any] = pipeline.execute(raise_on_error=False)
            failures = [answer for answer in found if isinstance(answer, Exception)]
            if not failures:
                return found
            if loaded or not isinstance(failures[0], NoScriptError):
                raise failures[0]
            for script in {call.script for call in calls}:
                client.script_load(script)
        raise AssertionError("unreachable")

    def _trying(self, attempt: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except _REFUSED as error:
                raise ConfigurationError(
                    f"the Redis at {self} refused this user ({error}); check options user and "
                    "password, and what the user may do"
                ) from None
            except _PASSING as error:
                self.close()
                if time.monotonic() + pause >= deadline:
                    raise RetriableError(
                        f"the Redis at {self} cannot be used for now ({type(error).__name__}: "
                        f"{error}), tried for {self._timeout:g} s (option timeout)"
                    ) from None
            except OutOfMemoryError as error:
                raise RetriableError(
                    f"the Redis at {self} has no memory left ({error}); raise its maxmemory or "
                    "remove data, and start the query again"
                ) from None
            except RedisError as error:
                raise self._failure(error) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _failure(self, error: RedisError) -> AssentError:
        if isinstance(error, ResponseError) and FENCED in str(error):
            return FencedError(
                f"the Redis at {self} holds rows of a newer epoch or run of this query: what this "
                "task wrote came too late, and changed nothing. Nothing has to be done if the "
                "query goes on elsewhere; make sure that only one driver runs it"
            )
        return AssentError(
            f"the Redis at {self} did not take what was sent ({type(error).__name__}: {error})"
        )

    def __str__(self) -> str:
        return ",".join(str(address) for address in self._addresses)

    def _find(self) -> Place | None:
        """The one server; None for a cluster, whose slots are then known."""
        if self._alone is None and not self._slots:
            failure: Exception | None = None
            for address in self._addresses:
                place = (address.host, address.port)
                try:
                    info: Any = self._client(place).info("cluster")
                    if not info.get("cluster_enabled"):
                        self._alone = place
                    else:
                        self._slots = _slot_table(self._client(place), address.host)
                    return self._alone
                except _PASSING as error:
                    if isinstance(error, _REFUSED):
                        raise
                    failure = error  # another address may answer
            assert failure is not None
            raise failure
        return self._alone

    def _place(self, key: bytes) -> Place:
        return self._find() or self._slots[slot_of(key)]

    def _client(self, place: Place) -> redis.Redis:
        if place not in self._clients:
            first = self._addresses[0]
            pool = redis.ConnectionPool(
                **first.arguments,
                host=place[0],
                port=place[1],
                db=first.database,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                # Trying again is done above, where it is known what may be sent twice.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
            self._clients[place] = redis.Redis.from_pool(pool)
        return self._clients[place]


def slot_of(key: bytes) -> int:
    """The slot of a cluster in which a key lies: that of its hash tag, if it has one."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


@functools.cache
def slot_tags() -> list[bytes]:
    """A short hash tag for every slot."""
    tags: dict[int, bytes] = {}
    number = 0
    while len(tags) < SLOTS:
        tag = b"%x" % number
        tags.setdefault(slot_of(tag), tag)
        number += 1
    return [tags[slot] for slot in range(SLOTS)]


def _slot_table(client: redis.Redis, host: str) -> list[Place]:
    table: list[Place | None] = [None] * SLOTS
    found: Any = client.execute_command("CLUSTER", "SLOTS")
    for first, last, primary, *_ in found:
        # A node that does not know its own address is the one that was asked.
        place = (primary[0].decode() or host, int(primary[1]))
        table[first : last + 1] = [place] * (last + 1 - first)
    places = [place for place in table if place is not None]
    if len(places) < SLOTS:
        raise ClusterDownError("some slots are served by nobody")
    return places


@functools.cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
