"""The second front-end: foreachBatch, with one or several sinks in one epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from assent.ledger.location import canonical
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.listener import EpochListener
from assent.protocol.name import nonce
from assent.protocol.participant import Participant
from assent.protocol.record import RecordKey
from assent.protocol.sink import Sink
from assent.protocol.vote import Vote, read_votes
from assent.sinks.option import read_options
from assent.spark.assembly import assemble, refuse_unfinished, trace_from_environment
from assent.spark.frozen import freeze_modules
from assent.spark.offsets import check_offsets, offsets_publisher
from assent.spark.prompt import promptly
from assent.spark.schema import arrow_schema
from assent.spark.settings import OPTIONS, Settings, load_listener
from assent.spark.spool import spooled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NAME = "assent.Epochs"


class Epochs:
    """The function for `foreachBatch` that commits each micro-batch into all sinks, or none.

    Parameters
    ----------
    *sinks
        Where each row goes. Several sinks share one pass over the data and one decision.
    listeners
        Objects that act on the end of an epoch.
    **options
        The same options as for the data sources, in Spark's camelCase: `deliveryGuarantee`,
        `retainedEpochs`, `commitTimeout`, `timeoutWarningRatio`, `onTimeout`, `allowDowngrade`,
        `commitOffsets`.
        `checkpointLocation` is found by itself, except on Spark Connect, where the server does
        not tell: give it there, the same as on the writer.

    Examples
    --------
    >>> import assent
    >>> (
    ...     frame.writeStream.outputMode("update")
    ...     .foreachBatch(assent.Epochs(assent.FilesSink("/data/counts")))
    ...     .option("checkpointLocation", "/data/checkpoint")
    ...     .start()
    ... )  # doctest: +SKIP
    """

    def __init__(
        self, *sinks: Sink[Any], listeners: Sequence[EpochListener] = (), **options: object
    ) -> None:
        if not sinks:
            raise ConfigurationError(f"{NAME}: give it at least one sink")
        for sink in sinks:
            if not isinstance(sink, Sink):
                raise ConfigurationError(
                    f"{NAME}: {sink!r} is not a sink; pass objects such as assent.FilesSink(…), "
                    "and listeners as listeners=[…]"
                )
        names = [f"{sink.kind} {sink.target}" for sink in sinks]
        if len(set(names)) != len(names):
            raise ConfigurationError(
                f"{NAME}: two sinks write to the same place ({', '.join(names)}); give each its own"
            )
        texts = {key: _option_text(value) for key, value in options.items()}
        self._values = read_options(texts, OPTIONS, sink=NAME)
        self._sinks = sinks
        self._listeners = tuple(listeners)
        self._settings: Settings | None = None
        self._coordinator: Coordinator | None = None
        self._location: str | None = None
        self._checked: StructType | None = None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """Run one epoch. Called by Spark."""
        settings = self._open(frame)
        self._check(frame)
        if settings.guarantee is Guarantee.EXACTLY_ONCE:
            assert self._coordinator is not None
            assignment = self._coordinator.plan()
            try:
                votes = self._write(frame, epoch, assignment)
            except BaseException:
                self._coordinator.abort((), epoch, assignment)
                raise
            if not votes:  # a frame without partitions: nobody could vote, and nothing is to do
                return
            self._coordinator.commit(votes, epoch)
        else:
            self._write(frame, epoch, Assignment(nonce(), RecordKey(0, 0), nonce()))
            for listener in self._all_listeners(settings):
                listener.on_epoch_complete(epoch)

    def _open(self, frame: DataFrame) -> Settings:
        """Settings and coordinator for the checkpoint of the query that calls."""
        location = _checkpoint_location(frame)
        given = self._values["checkpointLocation"]
        if given and location and canonical(given) != canonical(location):
            raise ConfigurationError(
                f"{NAME}: checkpointLocation is {given!r}, but Spark keeps this query's checkpoint "
                f"at {location!r}; leave the option out, or give the same"
            )
        if self._settings is None or location != self._location:
            settings = Settings.from_options(self._values, location=location, sink=NAME)
            for sink in self._sinks:
                sink.guarantee = settings.guarantee
            check_offsets(settings, offsets_publisher(settings, self._sinks))
            durable = settings.checkpoint_location
            if settings.guarantee is Guarantee.EXACTLY_ONCE:
                assert durable is not None
                self._coordinator = assemble(
                    durable, self._sinks, settings.policy, self._all_listeners(settings)
                )
            elif durable is not None:
                refuse_unfinished(durable)
            self._settings, self._location, self._checked = settings, location, None
        return self._settings

    def _check(self, frame: DataFrame) -> None:
        if frame.schema != self._checked:
            schema = arrow_schema(frame.schema, NAME)
            for sink in self._sinks:
                sink.check(schema)
            self._checked = frame.schema

    def _distributed(self, frame: DataFrame) -> DataFrame:
        """The rows given to tasks as the sinks need it; by number, so that a replay is alike."""
        wanted = {tuple(sink.distribution) for sink in self._sinks} - {()}
        if len(wanted) > 1:
            raise ConfigurationError(
                f"{NAME}: the sinks need rows by different keys in one task "
                f"({'; '.join(', '.join(names) for names in sorted(wanted))}), and share one pass "
                "over them; set commitMode to staged and an orderColumn, or write them by two "
                "queries"
            )
        for names in wanted:
            tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)
            return frame.repartition(tasks, *names)
        return frame

    def _all_listeners(self, settings: Settings) -> list[EpochListener]:
        named = [load_listener(name) for name in settings.listeners]
        return [*self._listeners, *named, *offsets_publisher(settings, self._sinks)]

    def _write(self, frame: DataFrame, epoch: int, assignment: Assignment) -> list[Vote]:
        """Steps 1 to 3, in one job."""
        sinks = self._sinks
        frame = self._distributed(frame)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            freeze_modules()
            participant = Participant(
                sinks, assignment, trace=trace_from_environment(), put_aside=spooled
            )
            vote = participant.vote(
                epoch, context.partitionId(), context.attemptNumber(), promptly(batches)
            )
            yield pa.record_batch([pa.array([str(vote)])], names=["vote"])

        return read_votes(row.vote for row in frame.mapInArrow(write, "vote string").collect())


def _checkpoint_location(frame: DataFrame) -> str | None:
    """Where Spark keeps the checkpoint of the query that calls; None where it does not tell.

    Neither the frame nor its session says so. The thread that calls carries the query's id, and
    the JVM's shared state knows the running queries by it.
    """
    try:
        session = frame.sparkSession._jsparkSession
    except AttributeError:
        return None  # Spark Connect
    context = frame.sparkSession.sparkContext
    query = context.getLocalProperty("sql.streaming.queryId")
    if query is None:
        return None
    jvm = context._jvm
    assert jvm is not None
    running = (
        session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
    )
    return None if running is None else str(running.resolvedCheckpointRoot())


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
