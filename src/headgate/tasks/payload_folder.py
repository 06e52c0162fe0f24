"""The folder of large payloads: on a disk, in S3 or another store of objects, reached by fsspec."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headgate.arguments import parse_bytes, parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError, needing
from headgate.urls import displayed_url, without_secrets

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")

_ONE_THREAD = {"ftp", "sftp", "ssh"}  # fsspec's own clients, which mix up the answers to several threads
_SERVERS = {"sftp", "ssh", "smb"}  # with real folders, and with a session that is not renewed


class PayloadFolder:
    """A folder for payloads and results of at least `above` bytes: `PayloadFolder("s3://company-jobs/headgate")`.

    `url` is one that fsspec opens: `file:///var/lib/jobs`, `s3://bucket/path`, `gs://bucket/path`; `options` are given
    to it, such as `key=` and `endpoint_url=` of S3. `above` is bytes or text like "1MB" (default: 100,000), of what the
    codecs have made. A read or a write that takes longer than `timeout` seconds (default: 30) has failed. The folder is
    made when it is first used.

    Needs `headgate[folder]`, and for other places than a disk the package that fsspec names for them; sshfs for SFTP.
    Raises DeclarationError for a URL that fsspec cannot open.
    """

    def __init__(self, url: str, *, above: int | str = 100_000, timeout: Duration = 30, **options: Any) -> None:
        with needing("PayloadFolder needs", "fsspec", install="'headgate[folder]'"):
            from fsspec.core import url_to_fs
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise DeclarationError(
                f"PayloadFolder: {displayed_url(str(url))!r:.200} is not the URL of a folder; write "
                '"file:///var/lib/jobs" or "s3://bucket/path"'
            )
        self.shown_url: str = displayed_url(url)
        self.above: int = parse_bytes(above, "above", "PayloadFolder")
        self.timeout: float = parse_seconds(timeout, "timeout", "PayloadFolder", allow_zero=False)
        self._open: Callable[[], tuple[Any, str]] = partial(url_to_fs, url, **options | {"skip_instance_cache": True})
        try:
            self._opened = _Opened(os.getpid(), *self._open())
        except Exception as error:  # fsspec raises what the package of the scheme raises
            cause = without_secrets(str(error), url)
            raise DeclarationError(f"PayloadFolder: {self.shown_url} cannot be opened: {cause}") from None
        if not self._files.async_impl and not _ONE_THREAD.isdisjoint(_protocols(self._files)):
            raise DeclarationError(
                f"PayloadFolder: {self.shown_url}: not with this client; for SFTP, pip install sshfs"
            )

    @property
    def is_in_process(self) -> bool:
        """Whether the folder is in the memory of this process, and ends with it."""
        return "memory" in _protocols(self._opened.files)

    # These block: they are called in threads. `name` is "<folder>/<object>" or "<folder>/<day>/<object>".

    def write(self, name: str, data: bytes, *, makes_folder: bool = False) -> None:
        """Store an object, so that it survives a loss of power.

        In a store with real folders, only that of the day is made, unless it `makes_folder`: what is above may be on a
        disk that is not mounted. Raises FileNotFoundError then.
        """
        path, files = self._path(name), self._files
        if "file" in _protocols(files):
            _write_to_disk(Path(path), data, makes_parents=makes_folder)
            return
        folder = path.rpartition("/")[0]
        if not _SERVERS.isdisjoint(_protocols(files)) and not files.exists(folder):
            try:
                files.mkdir(folder, create_parents=makes_folder)
            except Exception:
                if not files.exists(folder):  # another process may have made it meanwhile
                    raise
        files.pipe_file(path, data)

    def read(self, name: str) -> bytes | None:
        """Return an object; None if it is not there."""
        try:
            data: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return data

    def delete(self, name: str) -> bool:
        """Delete an object; return whether it was there, which some stores do not say."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
            return True
        return False

    def list(self, name: str) -> Iterator[str]:
        """Yield the last part of each name in a folder; nothing if the folder is not there."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(name), detail=False)
        except FileNotFoundError:
            return
        for path in found:
            yield str(path).rstrip("/").rpartition("/")[2]

    def delete_empty(self, name: str) -> None:
        """Delete a folder that is empty. Most stores of objects have none."""
        with contextlib.suppress(OSError, NotImplementedError):
            self._files.rmdir(self._path(name))

    def reopen(self) -> None:
        """Connect anew before the next access, if the folder is on a server with sessions: an access has failed."""
        if not _SERVERS.isdisjoint(_protocols(self._opened.files)):
            self._opened = self._opened._replace(pid=0)

    def _path(self, name: str) -> str:
        return f"{self._opened.root.rstrip('/')}/{name}"

    @property
    def _files(self) -> Any:
        if self._opened.pid != os.getpid():
            # After a fork: the connections and the thread of the parent cannot be used here. Nor can those that failed.
            self._opened = _Opened(os.getpid(), *self._open())
        return self._opened.files

    def __repr__(self) -> str:
        return f"PayloadFolder({self.shown_url!r}, above={self.above}, timeout={self.timeout:g})"


class _Opened(NamedTuple):
    """The filesystem that fsspec has opened, and the process that can use it."""

    pid: int
    files: Any
    root: str


def _protocols(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _write_to_disk(path: Path, data: bytes, *, makes_parents: bool) -> None:
    """Write a file and its name to the disk itself: fsspec leaves them in the cache of the system."""
    missing = [parent for parent in (path.parents if makes_parents else (path.parent,)) if not parent.exists()]
    path.parent.mkdir(parents=makes_parents, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if os.name == "nt":
        # A folder cannot be opened there.
        return
    for parent in {path.parent, *(each.parent for each in missing)}:
        folder = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
