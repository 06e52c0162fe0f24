"""Child processes of a test: started, heard, told, stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent


class Child:
    """A Python program of this folder. It says lines on its stdout, each a word and a JSON list of values."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.process = process
        self.said: list[tuple[str, list[Any]]] = []
        self.unheard: list[tuple[str, list[Any]]] = []
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
            )
        return cls(process, errors)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def hear(self, word: str, timeout: float = 15) -> list[Any]:
        """The values of the first unheard line that begins with `word`; other lines are kept for later."""
        assert self.process.stdout is not None
        for place, (said, values) in enumerate(self.unheard):
            if said == word:
                del self.unheard[place]
                return values
        async with asyncio.timeout(timeout):
            while True:
                line = await self.process.stdout.readline()
                if not line:
                    raise AssertionError(f"the child ended before it said {word!r}; {self._story()}")
                said, _, rest = line.decode().partition(" ")
                values = json.loads(rest or "[]")
                self.said.append((said.strip(), values))
                if said.strip() == word:
                    return list(values)
                self.unheard.append((said.strip(), values))

    def has_said(self, word: str) -> bool:
        """Whether it was heard saying that; `hear_all` hears what was not waited for."""
        return any(said == word for said, _ in self.said)

    async def hear_all(self, seconds: float = 0.2) -> None:
        """Hear what it has said so far, and says in so many seconds."""
        with contextlib.suppress(TimeoutError):
            await self.hear("what nobody says", seconds)

    def all_said(self, word: str) -> list[list[Any]]:
        """The values of all lines so far that begin with `word`."""
        return [values for said, values in self.said if said == word]

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.end()

    async def end(self, timeout: float = 15) -> int:
        """Hear everything that is left; the exit code."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        async with asyncio.timeout(timeout):
            async for line in self.process.stdout:
                word, _, values = line.decode().partition(" ")
                self.said.append((word.strip(), json.loads(values or "[]")))
            code = await self.process.wait()
        self.process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self.process.stdin.wait_closed()
        return code

    def _story(self) -> str:
        return f"it said {self.said[-10:]} and wrote: {self._errors.read_text()[-3000:]}"


class Children:
    """Starts children, and lets none of them outlive the test."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "children.log"
        self._all: list[Child] = []

    async def start(self, program: str, *, command: tuple[str, ...] = (), **options: Any) -> Child:
        child = await Child.start(program, self._errors, command=command, **options)
        self._all.append(child)
        return child

    @property
    def log(self) -> str:
        """What the children have written to their stderr."""
        return self._errors.read_text() if self._errors.exists() else ""

    async def end(self) -> None:
        for child in self._all:
            if child.process.returncode is None:
                # A stopped process cannot die of SIGKILL's politer relatives, but of this one it does.
                await child.kill()


@contextlib.asynccontextmanager
async def children_of(folder: Path) -> AsyncIterator[Children]:
    children = Children(folder)
    try:
        yield children
    finally:
        await children.end()
