"""The name of a transaction in a database that several sinks of a query may share."""

from __future__ import annotations

from dataclasses import dataclass

from assent.protocol.errors import ConfigurationError
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName


@dataclass(frozen=True)
class SqlName:
    """A transaction's name and the mark of its sink.

    Sinks of one query have one identity, and each must find its own transactions alone: what
    another sink has decided would look dead to it.

    >>> str(SqlName(TransactionName("3f2a9c0d", 2, 17, 0, "5be1"), mark="0a1b2c3d"))
    'assent-3f2a9c0d-2-17-0-5be1.0a1b2c3d'
    """

    name: TransactionName
    mark: str

    def __str__(self) -> str:
        return f"{self.name}.{self.mark}"

    @classmethod
    def parse(cls, text: str) -> SqlName:
        """Read the string form back; a ValueError if it is not one of ours."""
        name, dot, mark = text.rpartition(".")
        if not dot or len(mark) != 8:
            raise ValueError(f"not the name of a transaction of Assent: {text!r}")
        return cls(TransactionName.parse(name), mark)

    @classmethod
    def of(cls, handle: Handle, kind: str, target: str) -> SqlName:
        """The name that a handle stands for; refused if it belongs to another sink."""
        if handle.kind != kind or handle.details.get("target", target) != target:
            raise ConfigurationError(
                f"handle {handle} belongs to another sink than the {kind} sink of {target}"
            )
        try:
            return cls.parse(handle.name)
        except ValueError as error:
            raise ConfigurationError(f"handle {handle} does not name a transaction") from error
