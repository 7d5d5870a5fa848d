"""Where records are kept: the few operations that the ledger needs of a storage system."""

from __future__ import annotations

from typing import Protocol


class AlreadyExistsError(Exception):
    """A record with that name is there already, perhaps by one's own hand."""


class MissingError(Exception):
    """There is no record of that name."""


class RecordStore(Protocol):
    """A folder of small, immutable files.

    Names are relative, with `/` between folder and file. Any exception other than the two above
    leaves open whether the operation took place or still will.
    """

    @property
    def location(self) -> str:
        """The canonical location: the same text for the same place, however it was written."""

    def create(self, name: str, content: bytes) -> None:
        """Create a file together with its whole content, durably, or raise AlreadyExistsError.

        When it returns, the file survives a power cut. Of several creators one succeeds.
        """

    def read(self, name: str) -> bytes:
        """The whole content, or MissingError."""

    def list(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted; none if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""

    def recover(self) -> None:
        """Make durable whatever is visible, and remove what interrupted creations left behind.

        A creator that is still at work then starts over: it has created nothing yet.
        """
