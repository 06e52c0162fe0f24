"""A PgBouncer in transaction mode in front of a server, where the machine has one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.postgres_server import ENVIRONMENT, free_port, unprivileged
from tests.until import patient


class PgBouncer(NamedTuple):
    """A running PgBouncer, and the URL of the database behind it."""

    url: str
    port: int
    pid: int

    def url_at(self, port: int) -> str:
        """The same database by way of a proxy on that port."""
        return self.url.replace(f":{self.port}/", f":{port}/")


@contextmanager
def bouncer_before(url: str, folder: Path, *options: str) -> Iterator[str]:
    """The same database through a pool: any two transactions of a client may have different sessions of the server.

    Yields the URL of it. `options` are lines of its configuration. Skips the test where there is none.
    """
    with running_bouncer(url, folder, *options) as bouncer:
        yield bouncer.url


@contextmanager
def running_bouncer(url: str, folder: Path, *options: str) -> Iterator[PgBouncer]:
    """As `bouncer_before`, for a test that stops it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no PgBouncer: Debian's package is called pgbouncer")
    server = urlsplit(url)
    name = server.path.strip("/")
    port = free_port()
    base = Path(tempfile.mkdtemp(prefix="headgate-pgb-", dir="/tmp"))
    (base / "users.txt").write_text(f'"{server.username}" ""\n')
    configuration = base / "pgbouncer.ini"
    lines = [
        "[databases]",
        f"{name} = host={server.hostname} port={server.port} dbname={name} user={server.username}",
        "[pgbouncer]",
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =",
        f"auth_type = trust\nauth_file = {base / 'users.txt'}\nadmin_users = {server.username}",
        "pool_mode = transaction\nmax_client_conn = 200\ndefault_pool_size = 5",
        *options,
    ]
    configuration.write_text("\n".join(lines) + "\n")
    # It refuses to run as root, as the server does.
    base.chmod(0o755)
    with (folder / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen(
            [program, str(configuration)],
            env=ENVIRONMENT,
            cwd=base,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **unprivileged(),
        )
    try:
        deadline = time.monotonic() + patient(10)
        while not _answers(port):
            assert process.poll() is None, (folder / "pgbouncer.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "PgBouncer does not listen"
            time.sleep(0.02)
        yield PgBouncer(f"postgresql://{server.username}@127.0.0.1:{port}/{name}", port, process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(base, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex(("127.0.0.1", port)) == 0
