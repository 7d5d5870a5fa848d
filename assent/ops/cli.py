"""The command line."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from assent.ledger import settlement
from assent.ledger.identity import Identity
from assent.ledger.ledger import Ledger
from assent.protocol.errors import AssentError, ConfigurationError
from assent.protocol.handle import Handle
from assent.protocol.record import DecidedEpoch, Decision
from assent.spark.assembly import open_checkpoint
from assent.testing.stage import STAGES
from assent.version import __version__

app = typer.Typer(
    name="assent",
    help="End-to-end exactly-once for Spark Structured Streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpoint location.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def main() -> None:
    """Run the command line; an error of Assent's own is one message and exit code 1."""
    try:
        app()
    except AssentError as error:
        print(f"assent: {error}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    """End-to-end exactly-once for Spark Structured Streaming."""


@app.command()
def show(checkpoint: CheckpointArgument, as_json: JsonOption = False) -> None:
    """Show a ledger: whose it is, its recent epochs, and what is not finished."""
    ledger, spark = open_checkpoint(checkpoint)
    identity = _identity(ledger)
    decisions = [
        record
        for key in ledger.record_keys()
        if isinstance(record := ledger.find_record(key), Decision)
    ]
    waiting = settlement.unfinished(ledger, spark)
    if as_json:
        print(json.dumps(_as_json(identity, decisions, waiting)))
        return
    console = Console()
    console.print(f"ledger {identity.identity} at {ledger.location}")
    console.print(f"query {identity.owner.query}, writing to {' and '.join(identity.owner.sinks)}")
    table = Table("epoch", "place", "term", "tasks", "transactions", "rows", "MB", "state")
    open_epochs = {decided.epoch for decided in waiting}
    for decision in decisions[-20:]:
        statistics: Any = decision.statistics
        table.add_row(
            str(decision.epoch),
            str(decision.key.place),
            str(decision.key.term),
            str(decision.tasks),
            str(statistics.get("transactions", "")),
            f"{statistics.get('rows', 0):,}",
            f"{statistics.get('bytes', 0) / 1e6:,.1f}",
            "not finished" if decision.epoch in open_epochs else "complete",
        )
    console.print(table)
    for decided in waiting:
        for (partition, _), prepared in decided.transactions().items():
            console.print(
                f"epoch {decided.epoch}, partition {partition}: {prepared.handle}", soft_wrap=True
            )


@app.command()
def settle(
    checkpoint: CheckpointArgument,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="As the error names it.")],
    outcome: Annotated[str, typer.Argument(metavar="committed|aborted|lost")],
    reason: Annotated[str, typer.Option(help="Kept in the ledger.")] = "settled by an operator",
) -> None:
    """Say what became of a decided transaction that its store no longer knows.

    committed: its rows are there. aborted: they are not, and are to be written again from
    Spark's replay. lost: they are not, and the query is to go on without them. A driver that
    still runs the query will stop.
    """
    ledger, spark = open_checkpoint(checkpoint)
    if outcome not in ("committed", "aborted", "lost"):
        raise ConfigurationError(f"{outcome!r} is none of committed, aborted, lost")
    try:
        parsed = Handle.parse(handle)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    decided = settlement.settle(ledger, spark, parsed, outcome, reason)
    print(f"epoch {decided.epoch}: {parsed} is settled as {outcome}; start the query again")


@app.command()
def adopt(
    checkpoint: CheckpointArgument,
    sink: Annotated[
        list[str] | None,
        typer.Option(help="The sinks that it serves from now on, as the error names them."),
    ] = None,
) -> None:
    """Give the ledger of a copied or moved checkpoint, or of changed sinks, a new identity."""
    ledger, spark = open_checkpoint(checkpoint)
    identity = settlement.adopt(ledger, spark, sink or ())
    print(f"adopted as {identity.identity}, for {' and '.join(identity.owner.sinks)}")


@app.command()
def demo(
    sink: Annotated[
        str, typer.Option(help=f"Where the job writes: {', '.join(STAGES)}.", metavar="SINK")
    ] = "files",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line.")
    ] = False,
    keep: Annotated[bool, typer.Option(help="Keep the folders that the demo made.")] = False,
) -> None:
    """Kill a job at the worst instants, with and without exactly-once, and count its rows.

    Exits with 1 if the exactly-once count is off.
    """
    from assent.ops.demo import run

    if sink not in STAGES:
        raise ConfigurationError(f"--sink is {sink!r}; expected one of {', '.join(STAGES)}")
    raise typer.Exit(run(sink, as_json=as_json, keep=keep))


def _identity(ledger: Ledger) -> Identity:
    identity = ledger.find()
    if identity is None:
        raise ConfigurationError(
            f"there is no ledger at {ledger.location}: is this the checkpoint location of a query "
            "that has run with exactly_once?"
        )
    return identity


def _as_json(
    identity: Identity, decisions: list[Decision], waiting: list[DecidedEpoch]
) -> dict[str, Any]:
    return {
        "identity": identity.to_json(),
        "epochs": [
            {
                "epoch": decision.epoch,
                **decision.key.to_json(),
                "decidedAt": decision.decided_at,
                "statistics": dict(decision.statistics),
            }
            for decision in decisions
        ],
        "unfinished": [
            {
                "epoch": decided.epoch,
                "handles": [str(entry.handle) for entry in decided.transactions().values()],
            }
            for decided in waiting
        ],
    }
