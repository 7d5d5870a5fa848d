"""Spark's classes, loaded once and kept: `python -m assent.testing.archive`.

Most of what a Spark driver does in its first seconds is to load classes. Java can keep them, read
and checked, in an archive (class data sharing), which halves the time of a start; tests, demo and
chaos runs start drivers by the hundred. It is made once, by a small job, into the cache folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from assent.testing.jars import cache_folder, java

DUMP_VARIABLE = "ASSENT_ARCHIVE"
"""Set in the job that makes the archive: where to."""

_SECONDS = 300.0
_JOB = """
import shutil, tempfile
from assent.testing.pageviews import PageViews
from assent.testing.session import start_session

folder = tempfile.mkdtemp()
session = start_session("local[2]", "archive")
session.dataSource.register(PageViews)
(
    session.readStream.format("assent-pageviews").option("boundaries", "[[10,10]]").load()
    .writeStream.format("assent-files").option("path", folder + "/output")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    .awaitTermination()
)
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()  # it writes the archive as the last thing it does
shutil.rmtree(folder)
"""


def spark_home() -> Path:
    """Spark's home as a folder of links, always the same, for the archive holds its path.

    Without its folder `python` Spark's Python processes, of which a query starts many, import
    the installed pyspark; otherwise each would compile it anew from an archive of sources.
    """
    installed = Path(pyspark.__file__).parent
    home = _folder() / "home"
    home.mkdir(parents=True, exist_ok=True)
    for entry in installed.iterdir():
        if entry.name != "python":
            try:
                (home / entry.name).symlink_to(entry)
            except FileExistsError:
                pass
    return home


def java_options() -> str:
    """What makes a Spark start quickly, if the archive is there; nothing otherwise."""
    wanted = os.environ.get(DUMP_VARIABLE)
    if wanted:
        return f"-XX:ArchiveClassesAtExit={wanted} -Xlog:cds=off -Xlog:cds+dynamic=off"
    archive = _archive()
    # One that does not fit any more is passed over, without a word.
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off" if archive.exists() else ""


def make() -> None:
    """Make the archive unless it is there. Two processes may ask at once: one waits."""
    archive = _archive()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return
        made = archive.with_suffix(".new")
        made.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", _JOB],
            env={**os.environ, DUMP_VARIABLE: str(made)},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode or not made.exists():
            # Slower, not wrong: whoever starts Spark does without.
            print(f"assent: no class archive was made:\n{done.stderr[-2000:]}", file=sys.stderr)
            return
        made.rename(archive)


def _archive() -> Path:
    """By the Java that reads it: another one could not."""
    program = Path(java()).resolve()
    stamp = f"{program} {program.stat().st_mtime_ns}"
    return _folder() / f"classes-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}.jsa"


def _folder() -> Path:
    return cache_folder() / f"spark-{pyspark.__version__}"


if __name__ == "__main__":
    make()
