"""The program of the page on tasks runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fundamentals.conftest import RunExample

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.mark.slow
def test_the_examples_of_the_page_on_tasks_run_as_documented(tmp_path: Path, run_example: RunExample) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = run_example("\n".join(examples), tmp_path)
    assert printed.splitlines() == [
        "19",
        "Hello, Ada!",
        "168",
        "3 for acme",
        "1",
        "attempt 1 for acme",
        "paid 17",
        "indexed acme",
    ]
