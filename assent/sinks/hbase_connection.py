"""A connection to HBase through its Thrift server, tried again where that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import happybase
from Hbase_thrift import AlreadyExists, BatchMutation, ColumnDescriptor, IllegalArgument, Mutation
from Hbase_thrift import IOError as HBaseError
from thriftpy2.thrift import TException

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.sinks.hbase_rows import RowMutation

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_REASON = 300
# What HBase says of tables and families that are not there, wherever in the message.
_MISSING = ("TableNotFoundException", "NoSuchColumnFamilyException", "TableNotEnabledException")
_FORBIDDEN = "AccessDeniedException"

Result = TypeVar("Result")


class HBaseConnection:
    """Through one of several Thrift servers, whichever answers.

    What fails is tried again for `timeout` seconds: everything that is sent through here may be
    sent twice. What fails for good is an error of Assent's.
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], transport: str, protocol: str, timeout: float
    ) -> None:
        self._servers = servers
        self._arguments = {"transport": transport, "protocol": protocol}
        self._timeout = timeout
        self._turn = 0
        self._open: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._servers)

    def close(self) -> None:
        """Close the connection; it is opened again when needed."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def families(self, table: str) -> dict[str, int] | None:
        """The families of a table, with their time to live in seconds; None without a table."""

        def ask(client: Any) -> dict[str, int] | None:
            if table.encode() not in client.getTableNames():
                return None
            found = client.getColumnDescriptors(table.encode())
            return {name.decode().rstrip(":"): about.timeToLive for name, about in found.items()}

        return self._trying(ask)

    def create_table(self, table: str, family: str) -> None:
        """Create a table with one family, unless it is there."""

        def create(client: Any) -> None:
            try:
                descriptor = ColumnDescriptor(name=f"{family}:".encode(), maxVersions=1)
                client.createTable(table.encode(), [descriptor])
            except AlreadyExists:
                pass

        self._trying(create)

    def read(self, table: str, key: bytes, column: bytes) -> bytes | None:
        """The newest value of one cell."""

        def ask(client: Any) -> bytes | None:
            found = client.getRowWithColumns(table.encode(), key, [column], {})
            return bytes(found[0].columns[column].value) if found else None

        return self._trying(ask)

    def swap(self, table: str, key: bytes, column: bytes, known: bytes | None, new: bytes) -> bool:
        """Set a cell if it still holds what is known of it: None for no cell at all.

        Sent twice, the second answer may be False although the first call did it: read again.
        """
        mutation = Mutation(column=column, value=new)
        return bool(
            self._trying(
                lambda client: client.checkAndPut(table.encode(), key, column, known, mutation, {})
            )
        )

    def write(self, table: str, rows: Iterable[RowMutation], timestamp: int) -> None:
        """Write rows, all cells and deletions with one timestamp."""
        batches = [
            BatchMutation(
                row=row.key,
                mutations=[
                    *(Mutation(column=name, value=value) for name, value in row.cells.items()),
                    *(Mutation(isDelete=True, column=name) for name in row.gone),
                ],
            )
            for row in rows
        ]
        self._trying(lambda client: client.mutateRowsTs(table.encode(), batches, timestamp, {}))

    def has_rows(self, table: str) -> bool:
        """Whether the table holds anything."""

        def ask(client: Any) -> bool:
            scanner = client.scannerOpen(table.encode(), b"", [], {})
            try:
                return bool(client.scannerGet(scanner))
            finally:
                client.scannerClose(scanner)

        return self._trying(ask)

    # Inside.

    def _trying(self, attempt: Callable[[Any], Result]) -> Result:
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt(self._client())
            except IllegalArgument as error:
                raise AssentError(
                    f"the HBase at {self} did not take what was sent ({_reason(error)})"
                ) from None
            except (TException, OSError, EOFError) as error:
                self.close()
                self._refuse(error)
                if time.monotonic() + pause >= deadline:
                    raise RetriableError(
                        f"the HBase at {self} cannot be used for now ({_reason(error)}), tried "
                        f"for {self._timeout:g} s (option timeout)"
                    ) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _refuse(self, error: BaseException) -> None:
        """Raise for what does not pass by waiting."""
        reason, whole = _reason(error), _message(error)
        if isinstance(error, HBaseError):
            if any(name in whole for name in _MISSING):
                raise ConfigurationError(
                    f"the HBase at {self} does not have the table or family, or has it disabled "
                    f"({reason}); create or enable it"
                ) from None
            if _FORBIDDEN in whole:
                raise ConfigurationError(
                    f"the HBase at {self} refused this user ({reason}); it has to read and write "
                    "the table and the registry"
                ) from None

    def _client(self) -> Any:
        if self._open is None:
            host, port = self._servers[self._turn % len(self._servers)]
            self._turn += 1  # another one, the next time
            self._open = happybase.Connection(
                host, port, timeout=round(self._timeout * 1000), **self._arguments
            )
        return self._open.client


def _reason(error: BaseException) -> str:
    """The first line of the message: HBase sends its whole stack."""
    lines = [line.strip() for line in _message(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[0][:_REASON]}"


def _message(error: BaseException) -> str:
    message = getattr(error, "message", None) or str(error)
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)
