"""The examples of the docs pages run unchanged, each page as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate import Headgate
from tests.fundamentals.conftest import RunExample

DOCS = Path(__file__).parents[2] / "docs"

PAGES = [
    "dashboard-api.md",
    "dashboard.md",
    "encryption.md",
    "enqueueing.md",
    "gates.md",
    "index.md",
    "large-payloads.md",
    "metrics.md",
    "migrating.md",
    "payloads.md",
    "recipes.md",
    "retries.md",
    "standalone.md",
    "start.md",
    "sync.md",
    "tracing.md",
]


ELSEWHERE = {
    "cli.md": "test_cli_page.py",
    "clients.md": "faces/contrib/test_frameworks_page.py",
    "django.md": "faces/contrib/test_frameworks_page.py",
    "frameworks.md": "faces/contrib/test_frameworks_page.py",
    "hooks.md": "test_hooks_page.py",
    "layout.md": "test_layout_page.py",
    "notebooks.md": "test_notebooks_page.py",
    "recurring.md": "test_recurring.py",
    "tasks.md": "test_tasks_page.py",
    "testing.md": "faces/test_wheel.py",
    "testing-kit.md": "faces/test_wheel.py",
}

DECLARING = [
    "alerts.md",
    "limits-in-depth.md",
    "limits.md",
    "operating.md",
    "postgresql.md",
    "redis.md",
    "rules.md",
    "settings.md",
    "upgrade.md",
    "watching.md",
    "workers.md",
]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_examples_of_every_page_are_run_somewhere() -> None:
    pages = {page.name for page in DOCS.glob("*.md") if blocks_of(page.read_text())}
    assert pages == {*PAGES, *DECLARING, *ELSEWHERE, "chains.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_as_documented(page: str, tmp_path: Path, run_example: RunExample) -> None:
    blocks = blocks_of((DOCS / page).read_text())
    run_example("\n\n".join(blocks), tmp_path)


@pytest.mark.parametrize("page", DECLARING)
def test_the_examples_of_a_page_can_be_declared(page: str) -> None:
    exec("\n\n".join(blocks_of((DOCS / page).read_text())), {"__name__": "__main__"})


@pytest.mark.slow
def test_the_chains_and_batches_of_the_page_run(tmp_path: Path, run_example: RunExample) -> None:
    blocks = [block for block in blocks_of((DOCS / "chains.md").read_text()) if "current_job().follows" not in block]
    output = run_example("\n\n".join(blocks), tmp_path)
    assert output.endswith("of 20 are not final\nboth is here 10 acme is here 190\n")


@pytest.mark.slow
def test_a_step_of_a_chain_reads_the_previous_result_as_documented(tmp_path: Path, run_example: RunExample) -> None:
    page = (DOCS / "chains.md").read_text()
    (program,) = [block for block in blocks_of(page) if "current_job().follows" in block]
    assert f"It prints `{run_example(program, tmp_path).strip()}`" in page


def test_every_public_name_of_an_app_is_one_that_the_documentation_uses() -> None:
    pages = "\n".join(page.read_text() for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")])
    names = [name for name in dir(Headgate) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"\bapp\.{name}\b", pages)] == []
