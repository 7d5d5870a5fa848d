"""Java libraries for the servers that tests, the demo and benchmarks run.

They are resolved by the Ivy that comes with pyspark, once, into the folder `.cache` of the clone
(or that named by ASSENT_CACHE); afterwards no network is needed. Ivy looks where it looks by
default; ASSENT_IVY_SETTINGS names a settings file for those who have repositories of their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from assent.protocol.errors import AssentError

CACHE_VARIABLE = "ASSENT_CACHE"
SETTINGS_VARIABLE = "ASSENT_IVY_SETTINGS"

_RESOLVE_SECONDS = 900.0


class JarsUnavailable(AssentError):
    """The libraries cannot be had here: no Java, no network, no such version."""


@dataclass(frozen=True)
class Artifact:
    """A library by its Maven coordinates."""

    organisation: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"


def resolve(artifact: Artifact, *, alone: bool = False) -> list[Path]:
    """The jars of the artifact and of all it needs at run time; or `alone` its own.

    Two processes may ask at once: one resolves, the other waits. Different ones come at once.
    """
    folder = _folder(artifact, alone)
    if not folder.is_dir():
        with locked(cache_folder() / "locks" / folder.name):
            if not folder.is_dir():  # it may have come while waiting for the lock
                _retrieve(artifact, folder, alone)
    return sorted(folder.glob("*.jar"))


def is_cached(artifact: Artifact, *, alone: bool = False) -> bool:
    """Whether it was resolved before, so that no network is needed."""
    return _folder(artifact, alone).is_dir()


def java(program: str = "java") -> str:
    """Where a program of the Java installation is, looked up as Spark does."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", program)) if home else program)
    if path is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise JarsUnavailable(f"there is no `{program}` {where}; install Java 17 or later")
    return path


def cache_folder() -> Path:
    """Where downloads are kept."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return clone / ".cache"
    return Path.home() / ".cache" / "assent"


def _folder(artifact: Artifact, alone: bool) -> Path:
    name = str(artifact).replace(":", "_")
    return cache_folder() / "jars" / (f"{name}_alone" if alone else name)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _retrieve(artifact: Artifact, folder: Path, alone: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
        complete = Path(scratch, "complete")
        complete.mkdir()
        command = [
            java(),
            # Its own cache serves for this once: two that share one disturb each other.
            f"-Divy.default.ivy.user.dir={Path(scratch, 'ivy')}",
            "-jar",
            str(_ivy()),
            "-error",
            "-confs",
            "default",
            *_settings(),
            *(["-notransitive"] if alone else []),
            "-dependency",
            artifact.organisation,
            artifact.name,
            artifact.version,
            "-retrieve",
            f"{complete}/[artifact]-[revision](-[classifier]).[ext]",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise JarsUnavailable(
                f"{artifact} could not be resolved within {_RESOLVE_SECONDS:g} s"
            ) from None
        if done.returncode or not any(complete.glob(f"{artifact.name}-*.jar")):
            raise JarsUnavailable(
                f"Ivy cannot resolve {artifact} (network? {SETTINGS_VARIABLE} names a settings "
                f"file for other repositories):\n{(done.stdout + done.stderr)[-2000:]}"
            )
        # By one act: a folder that is there is complete.
        complete.rename(folder)


def _settings() -> list[str]:
    settings = os.environ.get(SETTINGS_VARIABLE)
    return ["-settings", settings] if settings else []


def _ivy() -> Path:
    found = sorted(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise JarsUnavailable("this pyspark comes without Ivy: install the full pyspark from PyPI")
    return found[-1]
