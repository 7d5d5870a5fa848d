"""All benchmarks, one after the other: `python -m bench [names…] [--quick] [--json FILE]`.

Each is a command of its own, with options of its own: `python -m bench.growth --help`. Each runs
in a process of its own, so that none warms another up. What fails is said, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.command import say
from bench.machine import machine, versions
from bench.result import FORMAT, Result

BENCHES = (
    "kafka_large",
    "kafka_small",
    "kafka_to_kafka",
    "postgres_sink",
    "mariadb_sink",
    "redis_sink",
    "files_sink",
    "growth",
    "recovery",
    "memory",
    "kafka_producer",
    "fingerprint",
)


def measure(name: str, *, quick: bool) -> dict[str, Any] | None:
    """Run one benchmark; None if it failed."""
    say(f"bench.{name} runs …")
    with tempfile.TemporaryDirectory(prefix="assent-bench-") as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-m", f"bench.{name}", "--json", str(file)]
        done = subprocess.run(command + (["--quick"] if quick else []), check=False)
        if done.returncode:
            say(f"bench.{name} FAILED with {done.returncode}")
            return None
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="reduced: shows that they work, only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="where plots go, as SVG")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; one of {', '.join(BENCHES)}")
    names = options.names or BENCHES
    found = {name: measure(name, quick=options.quick) for name in names}
    failed = [name for name, result in found.items() if result is None]
    results = [result for result in found.values() if result is not None]
    if options.json is not None:
        whole = {
            "format": FORMAT,
            "quick": options.quick,
            "machine": machine(),
            "versions": versions(),
            "failed": failed,
            "benches": results,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    if options.plots is not None:
        from bench.plot import plot  # needs the extra

        for result in results:
            plot(Result.from_json(result), options.plots)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
