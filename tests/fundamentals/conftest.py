"""Examples of the documentation run as users run them: with the package that is installed from the wheel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faces.wheel import installed_wheel
from tests.until import patient

RunExample = Callable[[str, Path], str]


@pytest.fixture(scope="session")
def run_example(tmp_path_factory: pytest.TempPathFactory) -> RunExample:
    """Run a program in a folder and return what it prints; a warning is an error."""
    _, programs = installed_wheel(tmp_path_factory)

    def run(program: str, folder: Path) -> str:
        (folder / "program.py").write_text(program)
        ran = subprocess.run(
            [programs / "python", "-W", "error", "program.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=patient(45),
            # What is compiled once need not be compiled by each program.
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run
