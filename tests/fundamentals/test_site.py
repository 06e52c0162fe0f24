"""The site of the docs: every page is in it, every link leads somewhere, and the reference is the code's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_docs_build_without_a_warning_and_contain_every_public_name(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    reference = "".join(page.read_text() for page in (tmp_path / "reference").rglob("index.html"))
    missing = [name for name in headgate.__all__ if f">{name}<" not in reference and f'.{name}"' not in reference]
    assert not missing, f"the reference lacks {missing}"
