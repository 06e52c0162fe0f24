"""The Makefile installs for each target what it needs, and nothing twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def planned(target: str, environment: Path) -> str:
    command = ["make", "--dry-run", target, f"VENV={environment}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_demo_installs_the_dependencies_of_the_package_and_no_group(tmp_path: Path) -> None:
    commands = planned("demo", tmp_path)

    assert "--editable ." in commands
    assert "--group" not in commands
    assert "--group dev" in planned("setup", tmp_path)


def test_the_demo_installs_nothing_after_the_setup(tmp_path: Path) -> None:
    assert f"touch {tmp_path}/.stamp-dev {tmp_path}/.stamp-demo" in planned("setup", tmp_path)

    (tmp_path / ".stamp-demo").touch()

    assert "--editable" not in planned("demo", tmp_path)
