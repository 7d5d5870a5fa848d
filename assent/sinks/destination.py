"""Where files may go: the destinations on which the renaming of a folder is one act."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from assent.protocol.errors import ConfigurationError
from assent.sinks.folder import can_rename, remote_file_system

_PROMISE = (
    "an epoch appears by the renaming of one folder, which is one act, seen alike by all, only on "
    "a local disk: use a path or a file: URI on a disk that driver and executors share"
)


def local_path(path: str, option: str) -> Path:
    """The canonical path of a folder on this machine; anything else is refused."""
    if not _is_possible(path):
        raise ConfigurationError(
            f"option {option} holds a zero byte or half a character, which no path has"
        )
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", path)
    if scheme is None:
        return Path(os.path.realpath(path))
    try:
        parts = urlsplit(path)
    except ValueError:
        raise ConfigurationError(f"option {option} is no URI; write file:///folder") from None
    if scheme[1].lower() == "file" and parts.netloc in ("", "localhost"):
        if not parts.path.startswith("/"):
            raise ConfigurationError(f"option {option} is {path!r}; write file:///folder")
        if not _is_possible(unquote(parts.path)):
            raise ConfigurationError(f"option {option} is {path!r}, which holds a zero byte")
        return Path(os.path.realpath(unquote(parts.path)))
    # Not the whole value: what follows the scheme may hold credentials.
    raise ConfigurationError(f"option {option} begins with {scheme[1]}:, but {_PROMISE}")


def _is_possible(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in path


def check_apart(output: Path, staging: Path) -> None:
    """Refuse folders of which one lies in the other."""
    if staging.is_relative_to(output) or output.is_relative_to(staging):
        raise ConfigurationError(
            f"the staging folder {staging} and the output {output} lie one in the other, so that "
            "readers would see staged files; set option stagingPath to a folder beside the output"
        )


def check_folders(output: Path, staging: Path) -> None:
    """Create both folders if need be, and refuse those that cannot keep the promise."""
    if os.name != "posix":
        raise ConfigurationError(f"the files sink does not work on this system: {_PROMISE}")
    for folder, option in ((output, "path"), (staging, "stagingPath")):
        if (remote := remote_file_system(folder)) is not None:
            raise ConfigurationError(
                f"option {option}: {folder} is on a file system of type {remote}, whose listings "
                f"may be late or incomplete; {_PROMISE}"
            )
        _make(folder, option)
    if not can_rename(staging, output):
        raise ConfigurationError(
            f"option stagingPath: {staging} is not on the same file system as the output {output}, "
            "so nothing can be renamed from one to the other; set stagingPath to a folder on the "
            "file system of the output, and outside of it"
        )


def _make(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"option {option}: {folder}, or what it lies in, is a file; name another, or remove it"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"option {option}: cannot create {folder} ({error.strerror}); create it, or give this "
            "user the right to"
        ) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"option {option}: this user may not write to {folder}; change its permissions"
        )
