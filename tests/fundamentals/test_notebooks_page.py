"""The cells of the page on notebooks run one after another, and a task that is declared again replaces the old one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

PAGE = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text()
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

# As ipykernel does it: one event loop for the session, and each cell in a task of its own.
KERNEL = """
import ast, asyncio, builtins, inspect, json, sys
builtins.__IPYTHON__ = True
loop = asyncio.new_event_loop()
for cell in json.loads(sys.argv[1]):
    code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ran = eval(code, globals())
    if inspect.iscoroutine(ran):
        loop.run_until_complete(ran)
loop.close()
"""


def run(words: list[str], program: str, folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", *words], input=program, cwd=folder, capture_output=True, text=True,
        timeout=patient(45), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Error" not in ran.stderr
    assert "runs no jobs" not in ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_the_cells_of_the_page_run_and_may_be_run_again(tmp_path: Path) -> None:
    start, task, enqueue, status, results, stop = CELLS
    cells = [start, "await app.start()", task, enqueue, status, results, task, enqueue, results]
    cells += ["print(len(await app.admin.jobs()))", stop, stop]
    printed = run(["-", json.dumps(cells)], KERNEL, tmp_path).splitlines()
    assert printed[-3:] == [
        "['A GOOD DAY', 'A BAD DAY', 'AN ODD DAY']", "['A GOOD DAY', 'A BAD DAY', 'AN ODD DAY']", "3"
    ]  # fmt: skip
    # A kernel that was started again finds the jobs by their ids.
    again = run(["-", json.dumps([start, task, enqueue, results, stop])], KERNEL, tmp_path)
    assert again == "['A GOOD DAY', 'A BAD DAY', 'AN ODD DAY']\n"


# Each declaration in one line: from a pipe, the REPL of Python 3.13 reads no blocks.
REPL = r"""
from headgate import Headgate
app = Headgate("memory://")
started = await app.start()
exec("@app.task\nasync def double(number: int) -> int: return 2 * number")
print(await (await double.enqueue(4)).result(timeout=30))
exec("@app.task\nasync def double(number: int) -> int: return 3 * number")
print(await (await double.enqueue(4)).result(timeout=30))
await app.stop()
"""


@pytest.mark.slow
def test_a_task_that_is_declared_again_in_a_session_replaces_the_old_one(tmp_path: Path) -> None:
    printed = run(["-m", "asyncio"], REPL, tmp_path)
    assert re.findall(r"\d+$", printed, re.MULTILINE) == ["8", "12"]
