"""User code that acts on the end of an epoch, and keeps state with it."""

from __future__ import annotations

from assent.protocol.json_value import JsonValue


class EpochListener:
    """Subclass and override what you need. All methods run on the driver.

    `on_epoch_complete` runs when every transaction of the epoch is committed, and before Spark
    writes the epoch into its own commit log. A crash in between repeats it: make it idempotent.
    An exception stops the query, and the epoch is completed after the restart.

    `snapshot` gives a JSON value that is saved in the epoch's decision, atomically with it;
    `restore` hands the newest saved one back once per run, before anything else is called.
    """

    @property
    def name(self) -> str:
        """The name under which snapshots are saved; the same after every restart."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def on_epoch_complete(self, epoch: int) -> None:
        """Every row of the epoch is committed."""

    def on_epoch_aborted(self, epoch: int) -> None:
        """An attempt at the epoch was aborted; Spark will try it again after a restart."""

    def snapshot(self, epoch: int) -> JsonValue:
        """State to be saved with the epoch; None for nothing."""
        return None

    def restore(self, epoch: int, state: JsonValue) -> None:
        """The state saved with the newest decided epoch."""
