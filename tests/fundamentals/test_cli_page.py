"""The commands of docs/cli.md do what the page says, and the reference is what the commands say of themselves."""

from __future__ import annotations

import asyncio
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.main import main
from tests.until import patient

# By name: a type checker takes the folder of the same name for it.
writing: Any = importlib.import_module("docs.cli_reference")

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


async def fill(app: Any) -> None:
    """A shop where something has happened."""
    async with app:
        reminded = await app.tasks["remind"].enqueue_many([(f"{number}@example.org",) for number in range(3)])
        synced = await app.tasks["sync"].enqueue_many([("acme",)] * 20 + [("globex",)])
        await asyncio.gather(*(job.result(timeout=patient(15)) for job in [*reminded, synced[0]]))
    # Jobs without a worker wait.
    async with app.open():
        await app.tasks["remind"].enqueue("late@example.org")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_commands_of_the_page_run_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    asyncio.run(fill(importlib.import_module("shop").app))
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 30
    for line in lines:
        command, _, comment = line.partition("  # exits with ")
        words = shlex.split(command)
        environment = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        assert words[0] == "headgate"
        result = CliRunner(env=environment).invoke(main, words[1:])
        # The shop has no worker, which `doctor` reports as a problem.
        expected = 1 if words[1] == "doctor" else int(comment or 0)
        assert result.exit_code == expected, f"{line}\n{result.output}\n{result.exception!r}"


def test_the_command_reference_is_up_to_date() -> None:
    assert writing.PAGE.read_text() == writing.reference(), "run `python docs/cli_reference.py`"


def test_every_option_has_a_description() -> None:
    silent = [line for line in writing.reference().splitlines() if line.startswith("| `-") and line.endswith("|  |")]
    assert silent == []
