"""The program that the page on tasks consists of is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.mark.slow
def test_the_examples_of_the_page_on_tasks_do_what_they_say(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "program.py").write_text("\n".join(examples))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=18,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["19", "Hello, Ada!", "168", "3 for acme", "1", "attempt 1 for acme"]
