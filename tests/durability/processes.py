"""Child processes of a test: start them, send them words, read their lines, stop and kill them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

from tests.until import patient

HERE = Path(__file__).parent


class Child:
    """A Python program of this folder. It prints lines, each a word and a JSON list of values."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.process = process
        self.lines: list[tuple[str, list[Any]]] = []
        self.unread_lines: list[tuple[str, list[Any]]] = []
        self._errors = errors

    @classmethod
    async def start(cls, program: str, errors: Path, *, command: tuple[str, ...] = (), **options: Any) -> Self:
        """Run `program` with its options as JSON; `command` goes before the interpreter."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        environment |= {"PYTHONPATH": str(HERE.parent.parent), "HEADGATE_MIGRATE": "on"}
        with errors.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                sys.executable,
                str(HERE / program),
                json.dumps(options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                # A process group of its own, for what it starts.
                start_new_session=True,
            )
        return cls(process, errors)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_for_line(self, word: str, seconds: float = 15) -> list[Any]:
        """Return the values of the first unread line that begins with `word`; other lines are kept for later.

        Raises TimeoutError after `patient(seconds)`.
        """
        try:
            async with asyncio.timeout(patient(seconds)):
                return await self._line(word)
        except TimeoutError:
            raise TimeoutError(f"no line {word!r} within {patient(seconds):g} s; {self._output()}") from None

    async def _line(self, word: str) -> list[Any]:
        assert self.process.stdout is not None
        for place, (first, values) in enumerate(self.unread_lines):
            if first == word:
                del self.unread_lines[place]
                return values
        while True:
            line = await self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the child ended before it printed {word!r}; {self._output()}")
            first, _, rest = line.decode().partition(" ")
            values = json.loads(rest or "[]")
            self.lines.append((first.strip(), values))
            if first.strip() == word:
                return list(values)
            self.unread_lines.append((first.strip(), values))

    def has_line(self, word: str) -> bool:
        """Whether a line that begins with `word` has been read; `read_lines` reads those that no test waits for."""
        return any(first == word for first, _ in self.lines)

    async def read_lines(self, seconds: float = 0.2) -> None:
        """Read what it has printed so far, and what it prints in exactly so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._line("a word that is never printed")

    def lines_with(self, word: str) -> list[list[Any]]:
        """Return the values of all lines so far that begin with `word`."""
        return [values for first, values in self.lines if first == word]

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its threads, between two instructions, for the time of the block."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def stop(self, file: str | Path | None = None) -> None:
        """Stop it as `frozen` does; with a SQLite file, while it does not write there: that would stop all others."""
        with contextlib.ExitStack() as block:
            if file is not None:
                connection = sqlite3.connect(file, timeout=patient(15), isolation_level=None)
                block.callback(connection.close)
                connection.execute("BEGIN IMMEDIATE")
            self.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.end()

    async def end(self, seconds: float = 15) -> int:
        """Read the remaining lines, and return the exit code; raises TimeoutError after `patient(seconds)`."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        async with asyncio.timeout(patient(seconds)):
            async for line in self.process.stdout:
                word, _, values = line.decode().partition(" ")
                self.lines.append((word.strip(), json.loads(values or "[]")))
            code = await self.process.wait()
        self.process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self.process.stdin.wait_closed()
        return code

    def _output(self) -> str:
        return f"it printed {self.lines[-10:]}, and to stderr: {self._errors.read_text()[-3000:]}"


async def ended(*processes: asyncio.subprocess.Process, seconds: float = 15) -> None:
    """Ask them to terminate and wait for that; those that have not ended within `patient(seconds)` are killed."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(patient(seconds)):
            for process in processes:
                await process.wait()
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


class Children:
    """Starts children, and kills those that are alive when the test ends."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "children.log"
        self._all: list[Child] = []

    async def start(self, program: str, *, command: tuple[str, ...] = (), **options: Any) -> Child:
        child = await Child.start(program, self._errors, command=command, **options)
        self._all.append(child)
        return child

    @property
    def log(self) -> str:
        """The text that the children have written to stderr."""
        return self._errors.read_text() if self._errors.exists() else ""

    async def end(self) -> None:
        # With what they have started, and all of them before the first is waited for, which may fail. SIGKILL also ends
        # a process that is stopped.
        alive = [child for child in self._all if child.process.returncode is None]
        for child in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in alive:
            await child.end()


@contextlib.asynccontextmanager
async def children_of(folder: Path) -> AsyncIterator[Children]:
    children = Children(folder)
    try:
        yield children
    finally:
        await children.end()
