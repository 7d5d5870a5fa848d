"""All benchmarks, one after the other: `python -m bench [names…] [--quick] [--json FILE]`.

Each is a command of its own, with options of its own: `python -m bench.growth --help`. Each runs
in a process of its own, so that none warms another up. What fails is said, and the others go on.

All of them take hours. The file of results is written after each; what it holds is not run again,
unless it is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.command import say
from bench.machine import versions
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


@dataclass(frozen=True)
class Kept:
    """The results so far, in the order of the benchmarks. Each names its machine."""

    file: Path | None
    quick: bool
    benches: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path | None, *, quick: bool) -> Self:
        """Those of the file. ValueError if they cannot stand beside what will be measured."""
        kept = cls(file, quick)
        if file is None or not file.exists():
            return kept
        found = json.loads(file.read_text())
        for name, wanted in (("format", FORMAT), ("quick", quick)):
            if found[name] != wanted:
                raise ValueError(
                    f"{file} has results of another {name}: {found[name]!r}, not {wanted!r}; "
                    "name another file, or remove it"
                )
        kept.benches.update({result["bench"]: result for result in found["benches"]})
        return kept

    def add(self, name: str, result: dict[str, Any] | None) -> None:
        """What was measured now; None if it failed."""
        if result is None:
            self.benches.pop(name, None)
            self.failed.append(name)
        else:
            self.benches[name] = result
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self._whole(), indent=1, ensure_ascii=False) + "\n")

    @property
    def results(self) -> list[dict[str, Any]]:
        return [self.benches[name] for name in BENCHES if name in self.benches]

    def _whole(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "quick": self.quick,
            "versions": versions(),
            "failed": self.failed,
            "benches": self.results,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="reduced: shows that they work, only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results are kept")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="where plots go, as SVG")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; one of {', '.join(BENCHES)}")
    try:
        kept = Kept.read(options.json, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    for name in options.names or [name for name in BENCHES if name not in kept.benches]:
        kept.add(name, measure(name, quick=options.quick))
    if options.plots is not None:
        from bench.plot import plot  # needs the extra

        for result in kept.results:
            plot(Result.from_json(result), options.plots)
    if kept.failed:
        sys.exit(f"failed: {', '.join(kept.failed)}")


if __name__ == "__main__":
    main()
