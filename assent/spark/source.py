"""The first front-end: a Python data source for each sink."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import AssentError, ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.listener import EpochListener
from assent.protocol.name import nonce
from assent.protocol.participant import Participant
from assent.protocol.record import RecordKey
from assent.protocol.sink import Sink
from assent.protocol.vote import Vote, read_votes
from assent.sinks.option import Option, read_options
from assent.spark.assembly import assemble, refuse_unfinished, trace_from_environment
from assent.spark.frozen import freeze_modules
from assent.spark.offsets import check_offsets, offsets_publisher
from assent.spark.prompt import answer_promptly, promptly
from assent.spark.schema import arrow_schema
from assent.spark.settings import OPTIONS, Settings, load_listener
from assent.spark.spool import spooled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """A vote on its way through Spark, in its string form."""

    vote: str


class PlanningError(pickle.PicklingError):
    """Carries an error out of the pickling of the writer, which is where Spark plans an epoch.

    Spark wraps any other exception there into one about serialisation.
    """


class OptionSink(Protocol):
    """A class of sinks that are made of options."""

    kind: ClassVar[str]
    OPTIONS: ClassVar[tuple[Option, ...]]

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Sink[Any]:
        """The sink for what `read_options` made of `OPTIONS`."""


class AssentSource(DataSource):
    """A sink as a format of `writeStream`, by the name `assent-<kind>`. Subclasses say which.

    Made on the driver before the first epoch: a wrong option ends the query before a row is
    written.
    """

    sink_class: ClassVar[type[OptionSink]]

    @classmethod
    def name(cls) -> str:
        return f"assent-{cls.sink_class.kind}"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        known = (*OPTIONS, *self.sink_class.OPTIONS)
        self._values = read_options(options, known, sink=self.name())
        self._sink = self.sink_class.from_options(self._values)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EpochWriter:
        settings = Settings.from_options(self._values, sink=self.name())
        self._sink.guarantee = settings.guarantee
        self._sink.overwrite = overwrite
        _check_once(self.name(), self._sink, schema, overwrite, repr(sorted(self.options.items())))
        return EpochWriter(settings, self._sink, dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigurationError(
            f"{self.name()} is a sink for streaming queries: use df.writeStream, not df.write"
        )

    def reader(self, schema: StructType) -> NoReturn:
        raise ConfigurationError(f"{self.name()} is a sink and cannot be read from")


class EpochWriter(DataSourceStreamArrowWriter):
    """Writes one epoch.

    Spark makes a writer anew for every epoch, twice: once to plan it, when it is pickled into
    the tasks, and once in another process to commit or abort it, where it is not. So step 0
    happens when it is first pickled, and never on the committing side.
    """

    def __init__(self, settings: Settings, sink: Sink[Any], options: dict[str, str]) -> None:
        self._settings = settings
        self._sink = sink
        self._options = options
        self._assignment: Assignment | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._assignment is None:
            freeze_modules()
            try:
                self._assignment = self._plan()
            except AssentError as error:
                raise PlanningError(f"{type(error).__name__}: {error}") from error
        # The tasks need neither the options nor the listeners, which are the driver's.
        return {"_sink": self._sink, "_assignment": self._assignment}

    def _plan(self) -> Assignment:
        key = ("offsets", repr(sorted(self._options.items())))
        if key not in _checked:
            check_offsets(self._settings, offsets_publisher(self._settings, [self._sink]))
            _checked.add(key)
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE:
            return self._coordinator().plan()
        if self._settings.checkpoint_location is not None:
            refuse_unfinished(self._settings.checkpoint_location)
        return Assignment(nonce(), RecordKey(0, 0), nonce())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        assert context is not None
        assert self._assignment is not None
        epoch = context.getLocalProperty("streaming.sql.batchId")
        if epoch is None:
            raise ConfigurationError(
                "Spark runs this task outside of a micro-batch (there is no "
                "streaming.sql.batchId); Assent works with micro-batch triggers only"
            )
        freeze_modules()
        participant = Participant(
            [self._sink],
            self._assignment,
            trace=trace_from_environment(),
            put_aside=spooled,
        )
        vote = participant.vote(
            int(epoch),
            context.partitionId(),
            context.attemptNumber(),
            promptly(iterator),
        )
        return Message(str(vote))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        freeze_modules()
        answer_promptly()
        votes = _votes(messages)
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE:
            self._coordinator().commit(votes, batchId)
            return
        for listener in self._listeners():
            listener.on_epoch_complete(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE:
            self._coordinator().abort(_votes(messages), batchId)

    def _listeners(self) -> list[EpochListener]:
        named = [load_listener(name) for name in self._settings.listeners]
        return [*named, *offsets_publisher(self._settings, [self._sink])]

    def _coordinator(self) -> Coordinator:
        """The coordinator of this checkpoint in this process, which remembers its term."""
        location = self._settings.checkpoint_location
        assert location is not None
        known = _coordinators.get(location)
        if known is None or known[0] != self._options:
            known = (
                self._options,
                assemble(location, [self._sink], self._settings.policy, self._listeners()),
            )
            _coordinators[location] = known
        return known[1]


_coordinators: dict[str, tuple[dict[str, str], Coordinator]] = {}
"""By checkpoint location. Both of Spark's driver-side Python processes serve all queries."""

_checked: set[tuple[str, ...]] = set()
"""What was checked before: a writer is made for every epoch, and a check may ask a server."""


def _check_once(
    name: str, sink: Sink[Any], schema: StructType, overwrite: bool, options: str
) -> None:
    key = (name, schema.json(), str(overwrite), options)
    if key not in _checked:
        sink.check(arrow_schema(schema, name), overwrite)
        _checked.add(key)


def _votes(messages: list[WriterCommitMessage | None]) -> list[Vote]:
    return read_votes(message.vote for message in messages if isinstance(message, Message))
