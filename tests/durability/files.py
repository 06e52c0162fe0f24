"""What tests do to files between the awaits, at once and without a thread."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PAGE = 4096


def contents(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def size(path: Path) -> int:
    return path.stat().st_size


def cut(path: Path, size: int) -> None:
    """Truncate it."""
    with path.open("r+b") as file:
        file.truncate(size)


def corrupt(path: Path, page: int) -> None:
    """Overwrite all pages from this one on with noise."""
    length = size(path) - page * PAGE
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(os.urandom(length))


def copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def rename(source: Path, target: Path) -> None:
    source.rename(target)


def unlink(path: Path) -> None:
    path.unlink()


def is_there(path: Path) -> bool:
    return path.exists()


def log_of(path: Path) -> Path:
    """The write-ahead log beside a database."""
    return path.with_name(path.name + "-wal")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names_in(folder: Path, beginning: str) -> list[str]:
    """The files in a folder whose names begin so."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(beginning))


def open_files(beginning: Path) -> list[str]:
    """What this process has open of the files whose paths begin so (on Linux; elsewhere it is not known)."""
    descriptors = Path("/proc/self/fd")
    targets: list[str] = []
    for descriptor in descriptors.iterdir() if descriptors.exists() else ():
        # That of this list is closed by now.
        with contextlib.suppress(OSError):
            targets.append(str(descriptor.readlink()))
    return sorted(target for target in targets if target.startswith(str(beginning)))
