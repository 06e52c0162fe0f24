"""The wheel, built and installed into an environment of its own; third-party packages are those of the tests."""

from __future__ import annotations

import fcntl
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.until import patient

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is part of the error if it fails."""
    # What is compiled once need not be compiled by each command.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=patient(45),
        check=False,
    )
    assert ran.returncode == 0 or not check, f"{command}:\n{ran.stdout}\n{ran.stderr}"
    return ran


def installed_wheel(temporary: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build and install the wheel once in a run of tests: the wheel, and the folder of the installed programs.

    The processes of pytest-xdist share them: the first one to ask makes them, and the others wait for its lock.
    """
    own = temporary.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "installed-wheel"
    shared.mkdir(exist_ok=True)
    finished, environment = shared / "finished", shared / "environment"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            _install(_build(shared), environment)
            finished.touch()
    (wheel,) = shared.glob("*.whl")
    return wheel, environment / "bin"


def _build(folder: Path) -> Path:
    """Build the wheel of this tree into a folder, without network."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(wheel: Path, environment: Path) -> None:
    venv.create(environment, with_pip=False, symlinks=True, clear=True)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    pip += ["--python", environment / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=environment)
    # Named in a .pth, the packages of the tests come last, and their own .pth with the working tree is not read.
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "packages-of-the-tests.pth").write_text("\n".join(site.getsitepackages()))
