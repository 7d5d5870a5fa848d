"""The one error tree.

Every exception that leaves Assent is one of these, and each says what happened, to which epoch
or handle, and what to do::

    AssentError
    ├── ConfigurationError     an option, a schema or a destination is wrong; nothing was written
    │   └── IdentityError      the ledger belongs to another place, query or group of sinks
    ├── RetriableError         the store could not be reached or was busy; trying again is safe
    ├── FencedError            another run took over; this one has stopped and committed nothing
    ├── TornEpochError         the store gave up part of a decided epoch; a restart rewrites it
    ├── InDoubtError           nobody can tell whether a transaction was committed; settle it
    ├── LossError              decided rows are gone, and the options forbid to go on
    ├── ReplayError            Spark replays something else than what was decided
    └── LedgerError            a record is unreadable, truncated, foreign or of a newer version

A message never contains an option's value unless the option is known to hold no secret.
"""

from __future__ import annotations


class AssentError(Exception):
    """Base of all errors that Assent raises on purpose."""


class ConfigurationError(AssentError):
    """Something that the user set cannot work. Raised before any row is written."""


class IdentityError(ConfigurationError):
    """The ledger was made for another location, another query or other sinks."""


class RetriableError(AssentError):
    """The store did not do what it was asked, and asking again is safe."""


class FencedError(AssentError):
    """Another run of the query holds a newer term, or decided this place first."""


class TornEpochError(AssentError):
    """The store aborted transactions that a decision names.

    Nothing is lost yet: Spark has not finished the epoch, so a restarted query replays it and
    only the aborted partitions are written again.
    """


class InDoubtError(AssentError):
    """It cannot be known whether something was committed, so nothing goes on."""


class LossError(AssentError):
    """Decided rows are gone and the options say to fail rather than to rewrite them."""


class ReplayError(AssentError):
    """The replay of a decided epoch is not the epoch that was decided."""


class LedgerError(AssentError):
    """A record of the ledger cannot be trusted. The message names the file."""
