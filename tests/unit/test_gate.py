"""The gate reports each test, whatever another one does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient

ROOT = Path(__file__).parents[2]

# One fails, one fails the first time, one hangs in a loop and one in a thread's wait, and one fails while it leaks what
# warns when it is collected.
BAD = """
import asyncio, pathlib, threading

def test_fails():
    assert 1 == 2

def test_fails_once():
    marker = pathlib.Path(__file__).with_name("was here")
    was_here = marker.exists()
    marker.touch()
    assert was_here

async def test_hangs():
    await asyncio.Event().wait()

def test_waits():
    threading.Event().wait()

def test_leaks():
    leaked = [open(__file__)]
    leaked.append(leaked)
    assert not leaked
"""

GOOD = """
import gc
import pytest

@pytest.mark.parametrize("number", range(40))
def test_good(number):
    gc.collect()

def test_skipped():
    pytest.skip("no such server")
"""


def run_twice(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.twice", *arguments, folder],
        cwd=folder,
        env={**own, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


@pytest.mark.slow
def test_a_run_in_which_tests_fail_hang_and_leak_reports_all_others_and_repeats_what_failed(tmp_path: Path) -> None:
    (tmp_path / "test_bad.py").write_text(BAD)
    (tmp_path / "test_good.py").write_text(GOOD)
    settings = ("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "tests.conftest")
    ran = run_twice(tmp_path, *settings, "-n", "2", "--timeout", "2")
    assert re.findall(r"(\d+) failed, (\d+) passed", ran.stdout) == [("5", "40"), ("4", "1")], ran.stdout + ran.stderr
    assert re.search(r"WARNING: .*\n  test_bad\.py::test_fails_once$", ran.stdout.strip())
    assert "Skipped 1: 1 × no such server" in ran.stdout
    assert "INTERNALERROR" not in ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_run_that_ends_by_an_internal_error_has_no_second_chance(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_logreport(report):\n    raise SystemError(report.nodeid)\n"
    )
    (tmp_path / "test_bad.py").write_text("def test_fails():\n    assert 1 == 2\n")
    ran = run_twice(tmp_path)
    assert ran.returncode == pytest.ExitCode.INTERNAL_ERROR, ran.stdout + ran.stderr
    assert "run once more" not in ran.stdout


def test_processes_that_collect_other_tests_have_no_second_chance(tmp_path: Path) -> None:
    (tmp_path / "test_bad.py").write_text(
        "import os, pytest\n\n@pytest.mark.parametrize('process', [os.getpid()])\ndef test_good(process):\n    pass\n"
    )
    ran = run_twice(tmp_path, "-n", "2")
    assert "Different tests were collected" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "run once more" not in ran.stdout
