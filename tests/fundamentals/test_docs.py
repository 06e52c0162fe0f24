"""The examples of the docs pages are run as they stand there, each page as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import Headgate

DOCS = Path(__file__).parents[2] / "docs"

PAGES = [
    "dashboard.md",
    "enqueueing.md",
    "gates.md",
    "metrics.md",
    "migrating.md",
    "payloads.md",
    "retries.md",
    "standalone.md",
    "start.md",
    "tracing.md",
]


DECLARING = ["index.md", "limits.md", "operating.md", "redis.md", "watching.md"]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    blocks = blocks_of((DOCS / page).read_text())
    run("\n\n".join(blocks), tmp_path)


@pytest.mark.parametrize("page", DECLARING)
def test_the_examples_of_a_page_can_be_declared(page: str) -> None:
    exec("\n\n".join(blocks_of((DOCS / page).read_text())), {"__name__": "example"})


@pytest.mark.slow
def test_the_chains_and_batches_of_the_page_run(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of((DOCS / "chains.md").read_text()) if "current_job().follows" not in block]
    assert run("\n\n".join(blocks), tmp_path).endswith("of 20 are not final\nacme is here 190\n")


@pytest.mark.slow
def test_a_step_of_a_chain_reads_what_the_one_before_it_returned_as_the_page_says(tmp_path: Path) -> None:
    page = (DOCS / "chains.md").read_text()
    (program,) = [block for block in blocks_of(page) if "current_job().follows" in block]
    assert f"It prints `{run(program, tmp_path).strip()}`" in page


def test_every_public_name_of_an_app_is_one_that_the_documentation_uses() -> None:
    pages = "\n".join(page.read_text() for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")])
    names = [name for name in dir(Headgate) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"\bapp\.{name}\b", pages)] == []


def run(program: str, folder: Path) -> str:
    """What it prints."""
    (folder / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
