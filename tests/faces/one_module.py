"""A user's project of one module, and the command line as it is called there."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from headgate import Headgate
from headgate.cli.main import main
from headgate.clock import SystemClock
from headgate.storage.sqlite.storage import SqliteStorage

R = TypeVar("R")


class OneModule:
    """A directory with one module, whose name no other test has, and its app."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.name = f"project_{uuid.uuid4().hex}"
        (path / f"{self.name}.py").write_text(source)
        self.target = f"{self.name}:app"

    @property
    def app(self) -> Headgate:
        app: Headgate = importlib.import_module(self.name).app
        return app

    def do(self, work: Callable[[Headgate], Awaitable[R]], *, running: bool = False) -> R:
        """Work with the open app; with `running`, while it also runs jobs."""

        async def opened() -> R:
            async with self.app if running else self.app.open():
                return await work(self.app)

        return asyncio.run(opened())

    def enqueue(self, task: str, *arguments: Any, **using: Any) -> str:
        async def work(app: Headgate) -> str:
            return (await app.tasks[task].using(**using).enqueue(*arguments)).id

        return self.do(work)


def go_into(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the command were called in that directory, where the file of the jobs is."""
    monkeypatch.chdir(path)
    monkeypatch.setattr(sys, "path", [str(path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    make_tables(path)


def make_tables(path: Path) -> None:
    """Make the file of the jobs in that directory, as a worker does."""
    asyncio.run(SqliteStorage(path / "jobs.db", SystemClock()).migrate())


def call(*words: str, input: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """`headgate` with these words, and with `input` to what it asks."""
    return CliRunner(env=env).invoke(main, words, input=input)


def answer(*words: str) -> Any:
    """What it says to programs."""
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
