"""Residents per city district, kept right through crashes.

People register in a district and later move; every move is one person less here and one more
there. The count per district is state of the query, and what an epoch writes must agree with it:
if the state is saved but the epoch's output is lost, or written twice, the districts no longer
add up to the city. Kill this job wherever you like, between the snapshot and the commit too, and
start it again with the same arguments::

    python examples/residents.py --folder residents
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as pads
from pyspark.sql import SparkSession
from pyspark.sql.functions import sum as total

import assent

DISTRICTS = ("Harbour", "Hill", "Market", "Meadow", "Station")
PEOPLE = 400
YEARS = 5


def home(person: int, year: int) -> str:
    """Where a person lives: about every third one moves each year."""
    moves = sum((person * 7 + past * 5) % 3 == 0 for past in range(1, year + 1))
    return DISTRICTS[(person + moves * (1 + person % 4)) % len(DISTRICTS)]


def changes(year: int) -> list[tuple[str, int]]:
    """What the register notes in a year: (district, one person more or less)."""
    if year == 0:
        return [(home(person, 0), +1) for person in range(PEOPLE)]
    homes = [(home(person, year - 1), home(person, year)) for person in range(PEOPLE)]
    moves = [(old, new) for old, new in homes if old != new]
    return [change for old, new in moves for change in ((old, -1), (new, +1))]


def expected() -> dict[str, int]:
    """The residents of each district at the end."""
    return dict(Counter(home(person, YEARS - 1) for person in range(PEOPLE)))


def write_register(folder: Path) -> None:
    """One file per year. They are the input, so a restart must find them as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    for year in range(YEARS):
        file = folder / f"year-{year}.json"
        if file.exists():
            continue
        rows = [{"district": district, "change": change} for district, change in changes(year)]
        unfinished = folder / f".{file.name}"
        unfinished.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        # Spark takes files in the order of their times.
        os.utime(unfinished, (1_700_000_000 + year, 1_700_000_000 + year))
        unfinished.rename(file)


def run(session: SparkSession, folder: Path) -> None:
    """Count until the register is used up: one year is one epoch."""
    register = (
        session.readStream.schema("district string, change long")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "register"))
    )
    residents = register.groupBy("district").agg(total("change").alias("residents"))
    sink = assent.FilesSink(str(folder / "districts"), file_format="parquet")
    query = (
        residents.writeStream.outputMode("update")
        .foreachBatch(assent.Epochs(sink))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def residents(folder: Path) -> dict[str, int]:
    """What a reader finds: each district's row in the newest epoch that has one."""
    newest: dict[str, int] = {}
    for epoch in sorted((folder / "districts").glob("epoch=*"), key=lambda path: path.name[-6:]):
        for row in pads.dataset(epoch, format="parquet").to_table().to_pylist():
            newest[row["district"]] = row["residents"]
    return newest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; 1 if the districts do not add up."""
    parser = argparse.ArgumentParser(description="Residents per city district.")
    parser.add_argument("--folder", type=Path, required=True, help="register, output, checkpoint")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    write_register(options.folder / "register")
    session = (
        SparkSession.builder.master(options.master)
        .appName("residents")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        run(session, options.folder)
    finally:
        session.stop()
    found = residents(options.folder)
    for district in sorted(found):
        print(f"{district:10} {found[district]:5}")
    print(f"{'city':10} {sum(found.values()):5}")
    return 0 if found == expected() else 1


if __name__ == "__main__":
    raise SystemExit(main())
