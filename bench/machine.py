"""Where and with what was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from assent.testing.jars import java
from assent.testing.kafka import KAFKA
from assent.testing.postgres import POSTGRES

_PACKAGES = (
    "pyspark",
    "pyarrow",
    "numpy",
    "confluent-kafka",
    "psycopg",
    "pymysql",
    "redis",
)
_PROGRAMS = {
    "psql": ("psql", "--version"),
    "MariaDB": ("/usr/sbin/mariadbd", "--version"),
    "Redis": ("redis-server", "--version"),
}


def machine() -> str:
    """Processor, cores, memory, system. No name or address of it."""
    memory = re.search(r"MemTotal:\s+(\d+)", _text("/proc/meminfo"))
    processor = re.search(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    parts = [
        processor[1] if processor else platform.processor(),
        f"{os.cpu_count()} cores",
        f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "memory unknown",
        f"{platform.system()} {platform.release().partition('-')[0]}",
    ]
    return ", ".join(parts)


def versions() -> dict[str, str]:
    """Of all that takes part; Assent's, Flink's and Quix Streams' are with their results."""
    found = {"Python": platform.python_version()}
    found["Java"] = _version(java(), "-version")
    found |= {"Kafka": KAFKA, "PostgreSQL": str(POSTGRES)}
    for package in _PACKAGES:
        found[package] = importlib.metadata.version(package)
    for name, command in _PROGRAMS.items():
        if shutil.which(command[0]):
            found[name] = _version(*command)
    return found


def commit() -> str:
    """Assent's own version, to the commit."""
    version = importlib.metadata.version("assent")
    done = _output("git", "describe", "--always", "--dirty")
    return f"{version} ({done.strip()})" if done else version


def _version(*command: str) -> str:
    number = re.search(r"\d+(\.\d+)+", _output(*command))
    return number[0] if number else "unknown"


def _output(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""
