"""The README's example is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_example_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 25
    (tmp_path / "example.py").write_text(example)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert first == "globex, page 1"
    assert second.startswith("waiting behind ('sync_tenant:strict', 'acme') until 2")
    assert (tmp_path / "jobs.db").exists()
