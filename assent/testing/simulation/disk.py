"""A file system that loses in a power cut what was not flushed, under the real `LocalStore`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import assent.ledger.local
from assent.testing.simulation.choices import Choices
from assent.testing.simulation.scheduler import Scheduler

ROOT = "/ledger"


class File:
    """Content as processes see it, and as it is on the platter (None: nothing is)."""

    def __init__(self) -> None:
        self.content = b""
        self.durable: bytes | None = None


class Folder:
    """Names as processes see them, and as they are on the platter."""

    def __init__(self) -> None:
        self.entries: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}


class Disk:
    """A tree of folders and files. Every call is an operation that may fail or be the last."""

    def __init__(self, scheduler: Scheduler, appeared: Callable[[str, bytes], None]) -> None:
        self.root = Folder()
        self._scheduler = scheduler
        self._appeared = appeared
        self._descriptors: dict[int, File | Folder] = {}
        self._next_descriptor = 3

    def find(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(name)
        return node

    def folder(self, path: str) -> Folder:
        found = self.find(path) if path.strip("/") else self.root
        if not isinstance(found, Folder):
            raise FileNotFoundError(path)
        return found

    def is_durable(self, path: str) -> bool:
        """Whether the file survives a power cut, with all that is in it."""
        node: File | Folder | None = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder) or node.durable.get(name) is not node.entries.get(name):
                return False
            node = node.entries.get(name)
        return isinstance(node, File) and node.durable == node.content

    def files(self, path: str) -> dict[str, bytes]:
        """Names and contents in a folder, as processes see them."""
        node = self.find(path)
        entries = node.entries if isinstance(node, Folder) else {}
        return {name: file.content for name, file in entries.items() if isinstance(file, File)}

    def cut_power(self, choices: Choices) -> None:
        """Of what was not flushed, each part by itself survives, gets lost or is torn."""
        self._descriptors.clear()
        self._cut(self.root, choices)

    def _cut(self, folder: Folder, choices: Choices) -> None:
        survivors: dict[str, File | Folder] = {}
        for name in sorted({*folder.entries, *folder.durable}):
            seen, flushed = folder.entries.get(name), folder.durable.get(name)
            node = seen if seen is flushed or choices.pick(2) == 0 else flushed
            if node is None:
                continue
            survivors[name] = node
            if isinstance(node, Folder):
                self._cut(node, choices)
            elif node.content != node.durable:
                written = node.content
                torn = written[: len(written) // 2]
                node.content = choices.one_of((written, node.durable or b"", torn))
                node.durable = node.content
        folder.entries, folder.durable = survivors, dict(survivors)

    # What `assent.ledger.local` calls, in place of `os`, `open` and `Path`.

    O_RDONLY = 0
    O_DIRECTORY = 0

    def open(self, path: Any, flags: int) -> int:
        return self._describe(self.folder(str(path)))

    def _describe(self, node: File | Folder) -> int:
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = node
        return self._next_descriptor

    def fsync(self, descriptor: int) -> None:
        self._scheduler.point("disk: flush")
        node = self._descriptors[descriptor]
        if isinstance(node, File):
            node.durable = node.content
        else:
            node.durable = dict(node.entries)

    def close(self, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)

    def link(self, source: Any, target: Any) -> None:
        self._scheduler.point(f"disk: link {target}")
        file = self.find(str(source))
        if not isinstance(file, File):
            raise FileNotFoundError(str(source))
        entries = self.folder(str(target.parent)).entries
        if target.name in entries:
            raise FileExistsError(str(target))
        entries[target.name] = file
        self._appeared(str(target), file.content)
        self._scheduler.point(f"disk: linked {target}", False)

    @contextmanager
    def scandir(self, path: Any) -> Iterator[list[DiskPath]]:
        self._scheduler.point(f"disk: list {path}", False)
        yield [path / name for name in self.folder(str(path)).entries]

    @contextmanager
    def open_file(self, path: Any, mode: str) -> Iterator[OpenFile]:
        assert mode == "xb"
        self._scheduler.point(f"disk: open {path}")
        entries = self.folder(str(path.parent)).entries
        if path.name in entries:
            raise FileExistsError(str(path))
        file = File()
        entries[path.name] = file
        descriptor = self._describe(file)
        yield OpenFile(file, descriptor)
        self.close(descriptor)

    def path(self, path: Any) -> DiskPath:
        return DiskPath(self, str(path))

    def remove(self, path: DiskPath) -> None:
        self._scheduler.point(f"disk: remove {path}")
        node = self.find(str(path.parent))
        if isinstance(node, Folder):
            node.entries.pop(path.name, None)

    def make_folder(self, path: DiskPath) -> None:
        self._scheduler.point(f"disk: make {path}")
        entries = self.folder(str(path.parent)).entries
        if path.name not in entries:
            entries[path.name] = Folder()

    def read(self, path: DiskPath) -> bytes:
        self._scheduler.point(f"disk: read {path}", False)
        node = self.find(str(path))
        if not isinstance(node, File):
            raise FileNotFoundError(str(path))
        return node.content


class OpenFile:
    """A file that is being written. What is not flushed out of it is in no file yet."""

    def __init__(self, file: File, descriptor: int) -> None:
        self._file = file
        self._descriptor = descriptor
        self._buffer = b""

    def write(self, content: bytes) -> None:
        self._buffer += content

    def flush(self) -> None:
        self._file.content += self._buffer
        self._buffer = b""

    def fileno(self) -> int:
        return self._descriptor


class DiskPath:
    """As much of `pathlib.Path` as the ledger uses."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def __str__(self) -> str:
        return self._path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiskPath) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __truediv__(self, name: str) -> DiskPath:
        return DiskPath(self._disk, f"{self._path}/{name}")

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    @property
    def parent(self) -> DiskPath:
        return DiskPath(self._disk, self._path.rpartition("/")[0])

    def is_dir(self) -> bool:
        return not self._path or isinstance(self._disk.find(self._path), Folder)

    def mkdir(self, exist_ok: bool) -> None:
        self._disk.make_folder(self)

    def unlink(self, missing_ok: bool) -> None:
        self._disk.remove(self)

    def read_bytes(self) -> bytes:
        return self._disk.read(self)

    def glob(self, pattern: str) -> list[DiskPath]:
        assert pattern == "*"
        node = self._disk.find(self._path)
        return [self / name for name in (node.entries if isinstance(node, Folder) else ())]


@contextmanager
def mounted(disk: Disk) -> Iterator[None]:
    """While this lasts, the ledger's local store lives on the simulated disk."""
    module: Any = assent.ledger.local
    replaced = {
        "os": disk,
        "open": disk.open_file,
        "Path": disk.path,
        "local_path": str,
        "canonical": "file:{}".format,
    }
    before = {name: getattr(module, name, None) for name in replaced}
    try:
        for name, replacement in replaced.items():
            setattr(module, name, replacement)
        yield
    finally:
        for name, original in before.items():
            if original is None:
                delattr(module, name)
            else:
                setattr(module, name, original)
