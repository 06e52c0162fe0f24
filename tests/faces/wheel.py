"""The wheel, built and installed into an environment of its own; third-party packages are those of the tests."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is part of the error if it fails."""
    # What is compiled once need not be compiled by each command.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0 or not check, f"{command}:\n{ran.stdout}\n{ran.stderr}"
    return ran


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree into a folder, without network."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install it into a new environment; the folder of its programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        programs / "python",
    ]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    # Named in a .pth, the packages of the tests come last, and their own .pth with the working tree is not read.
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "packages-of-the-tests.pth").write_text("\n".join(site.getsitepackages()))
    return programs
