"""Environments of their own for what is compared, beside the jars in the cache folder.

Their libraries would not go together with those of this project.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from assent.protocol.errors import AssentError
from assent.testing.jars import cache_folder, locked
from bench.command import say


class EnvironmentUnavailable(AssentError):
    """The packages cannot be installed here."""


def interpreter(name: str, *requirements: str) -> str:
    """The Python of an environment with these packages, which is made if it is not there."""
    folder = cache_folder() / "venvs" / name
    stamp = folder / "assent.stamp"
    wanted = "\n".join(requirements)
    python = folder / "bin" / "python"
    with locked(cache_folder() / "venvs.lock"):
        if not stamp.is_file() or stamp.read_text() != wanted:
            say(f"  installing {' '.join(requirements)} (once) …")
            if not python.exists():
                _run([sys.executable, "-m", "venv", str(folder)], folder, requirements)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
            _run([*pip, *requirements], folder, requirements)
            stamp.write_text(wanted)
    return str(python)


def _run(command: list[str], folder: Path, requirements: tuple[str, ...]) -> None:
    log = folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise EnvironmentUnavailable(
            f"{', '.join(requirements)} could not be installed: `{command[2]}` ended with "
            f"{done.returncode}, see {log.name} in the folder venvs of the cache"
        )
