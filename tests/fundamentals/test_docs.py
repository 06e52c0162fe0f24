"""The examples of the docs pages are run as they stand there, each page as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

PAGES = [
    "dashboard.md",
    "enqueueing.md",
    "gates.md",
    "metrics.md",
    "migrating.md",
    "payloads.md",
    "retries.md",
    "start.md",
    "tracing.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text("\n\n".join(blocks))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_a_step_of_a_chain_reads_what_the_one_before_it_returned_as_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "chains.md").read_text()
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "asyncio.run(" in block]
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"It prints `{ran.stdout.strip()}`" in page
