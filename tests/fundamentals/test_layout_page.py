"""The package of the page on project layout is started as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

PAGE = (Path(__file__).parents[2] / "docs" / "layout.md").read_text()
FILES = dict(re.findall(r"```python\n# ([a-z/]+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
def test_a_worker_runs_the_jobs_that_another_program_enqueued(tmp_path: Path) -> None:
    for name, code in {"shop/__init__.py": "", **FILES}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    run(tmp_path, "web.py")
    run(tmp_path, "-m", "headgate", "worker", "shop.app:app", "--drain")
    assert "1 succeeded" in run(tmp_path, "-c", COUNT)
    assert "write_report" in run(tmp_path, "-m", "headgate", "schedules", "list", "shop.app:app")


COUNT = """
import asyncio

from shop.app import app


async def count() -> None:
    async with app.open():
        jobs = await app.admin.jobs(state="succeeded")
    print(len(jobs), "succeeded")


asyncio.run(count())
"""


def run(folder: Path, *words: str) -> str:
    """Run Python in the folder; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(18),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
