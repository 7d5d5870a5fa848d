"""Servers for tests: they die with whoever started them; their jars come once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from assent.testing.fetch import fetch
from assent.testing.jars import (
    CACHE_VARIABLE,
    SETTINGS_VARIABLE,
    Artifact,
    JarsUnavailable,
    resolve,
)
from assent.testing.server import Server, ServerFailure, free_ports

_STARTER = """
import sys, time
from pathlib import Path
from assent.testing.server import Server

server = Server(["sleep", "600"], Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def _await(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("paused", [False, True])
def test_a_server_dies_with_a_killed_parent(tmp_path: Path, paused: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert _alive(pid)
    if paused:
        os.kill(pid, signal.SIGSTOP)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    _await(lambda: not _alive(pid))


def test_no_watcher_outlives_a_server(tmp_path: Path) -> None:
    server = Server(["sleep", "600"], tmp_path / "server.log")
    pid = server.pid
    (watcher,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    server.stop()
    assert not server.running
    _await(lambda: not _alive(int(watcher)))


def test_a_server_that_ends_shows_what_it_said(tmp_path: Path) -> None:
    server = Server(["sh", "-c", "echo no such thing; exit 3"], tmp_path / "server.log")
    with pytest.raises(ServerFailure, match="server ended with 3 before it was up") as caught:
        server.wait_until(lambda: False, "it was up", 10)
    assert "no such thing" in str(caught.value)


def test_ports_are_different_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < lowest


# Jars, out of a repository on the disk.


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    settings = tmp_path / "ivysettings.xml"
    pattern = f"{folder}/[organisation]/[module]-[revision].[ext]"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers><filesystem name="disk">'
        f'<artifact pattern="{pattern}"/></filesystem></resolvers></ivysettings>'
    )
    (folder / "org.example").mkdir(parents=True)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(settings))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return folder


def _publish(repository: Path, name: str) -> None:
    with zipfile.ZipFile(repository / "org.example" / f"{name}-1.0.jar", "w") as jar:
        jar.writestr("hello", "world")


def test_jars_are_resolved_once_by_two_processes_and_kept(repository: Path) -> None:
    _publish(repository, "thing")
    script = (
        "from assent.testing.jars import *; "
        "print(*resolve(Artifact('org.example', 'thing', '1.0')))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (process.communicate()[0] for process in both)
    assert first == second
    assert first.strip().endswith("thing-1.0.jar")
    (repository / "org.example" / "thing-1.0.jar").unlink()
    (jar,) = resolve(Artifact("org.example", "thing", "1.0"))
    assert zipfile.ZipFile(jar).read("hello") == b"world"


def test_what_cannot_be_resolved_leaves_nothing_behind(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(JarsUnavailable, match=r"cannot resolve org\.example:none:1\.0"):
        resolve(Artifact("org.example", "none", "1.0"))
    assert list((tmp_path / "cache" / "jars").iterdir()) == []


def test_all_parts_are_fetched_at_once_and_what_cannot_be_had_is_told_of() -> None:
    both = threading.Barrier(2, timeout=60)

    def unavailable() -> None:
        both.wait()
        raise JarsUnavailable("no network")

    assert fetch({"one": both.wait, "other": unavailable}) == {"other": "no network"}


def test_a_part_that_fails_otherwise_is_a_fault_of_ours() -> None:
    with pytest.raises(ZeroDivisionError):
        fetch({"one": lambda: 1 // 0})
