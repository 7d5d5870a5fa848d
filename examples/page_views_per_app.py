"""Page views per app, into files: no server needed.

The whole table of counts is written in every epoch, and the newest epoch is the answer::

    python examples/page_views_per_app.py --folder views
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as pads
from pyspark.sql import SparkSession

from assent.testing.pageviews import PageViews


def run(session: SparkSession, folder: Path) -> None:
    """Count until the topic is used up."""
    session.dataSource.register(PageViews)
    views = session.readStream.format("assent-pageviews").load()
    query = (
        views.groupBy("app")
        .count()
        .writeStream.outputMode("complete")
        .format("assent-files")
        .option("path", str(folder / "apps"))
        .option("snapshots", "true")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def counts(folder: Path) -> dict[str, int]:
    """What a reader finds: the table of the newest epoch."""
    newest = max((folder / "apps").glob("epoch=*"), key=lambda path: path.name[-6:])
    rows = pads.dataset(newest, format="parquet").to_table().to_pylist()
    return {row["app"]: row["count"] for row in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description="Page views per app.")
    parser.add_argument("--folder", type=Path, required=True, help="output and checkpoint")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    session = (
        SparkSession.builder.master(options.master)
        .appName("page-views-per-app")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        run(session, options.folder)
    finally:
        session.stop()
    found = counts(options.folder)
    for app in sorted(found):
        print(f"{app:8} {found[app]:6}")
    print(f"{'all':8} {sum(found.values()):6}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
