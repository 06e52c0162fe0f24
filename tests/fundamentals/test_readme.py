"""The examples of the README run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.fundamentals.conftest import RunExample

README = Path(__file__).parents[2] / "README.md"


FRAME = """
import asyncio
import sqlite3

from msgspec import Struct

from headgate import Cron, Headgate, Mutex, batch, chain

app = Headgate("sqlite:///jobs.db")
tenants = ["acme", "globex"]


class Order(Struct):
    number: int


@app.task
async def sync_tenant(tenant_id: str, page: int = 1) -> str:
    return tenant_id


@app.task
async def export(tenant_id: str) -> str:
    return tenant_id


@app.task
async def upload(tenant_id: str) -> str:
    return tenant_id


@app.task
async def report() -> None: ...


{declarations}


async def enqueue():
    async with app.open():
        transaction = sqlite3.connect("jobs.db")
{statements}
        transaction.close()


async def main():
    await enqueue()
    async with app:
        await render.enqueue(Order(7))
        while any(queue.waiting - 1 or queue.running for queue in await app.admin.counts()):
            await asyncio.sleep(0.05)  # all but the one that is delayed
        for job in sorted([job.task async for job in finished()]):
            print(job)
        print(len((await app.admin.schedules.list())))


async def finished():
    for job in await app.admin.jobs(state="succeeded"):
        yield job


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
def test_the_first_example_of_the_readme_runs_as_documented(tmp_path: Path, run_example: RunExample) -> None:
    example, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 25
    first, second = run_example(example, tmp_path).splitlines()
    assert first == "globex, page 1"
    assert second.startswith("waiting behind ('sync_tenant:rate', 'acme') until 2")
    assert (tmp_path / "jobs.db").exists()


@pytest.mark.slow
def test_the_methods_in_the_readme_work_as_documented(tmp_path: Path, run_example: RunExample) -> None:
    _, verbs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    statements, first, declarations = verbs.partition("@app.schedule")
    # SQLite has one writer: what comes after it would wait for the transaction.
    statements = re.sub(r"(?m)^.*connection=transaction.*$", r"\g<0>\ntransaction.commit()", statements)
    declarations = (first + declarations).replace("def render(order: Order) -> bytes: ...", RENDER)
    example = FRAME.format(statements=indent(statements, " " * 8), declarations=declarations)
    *tasks, schedules = run_example(example, tmp_path).splitlines()
    # One with a key, one in the transaction, two of the batch.
    assert tasks == ["export", "render", "report", "sync_tenant", "sync_tenant", "sync_tenant", "sync_tenant", "upload"]
    assert schedules == "1"


RENDER = "def render(order: Order) -> bytes: return b'%d' % order.number"


@pytest.mark.slow
def test_the_limit_that_the_readme_sets_is_one_of_its_example(tmp_path: Path) -> None:
    """The fault: the printed command named a limit that the example does not declare."""
    (tmp_path / "myjobs.py").write_text(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0])
    (command,) = re.findall(r"^headgate (limits set .*?) +#", README.read_text(), re.MULTILINE)
    for each in ("migrate myjobs:app", command):
        run = subprocess.run(
            [sys.executable, "-m", "headgate", *each.split()], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert (run.stdout, run.stderr) == ("sync_tenant:rate is now 30/m + 0.02s for key 'acme'\n", "")
