"""Run pytest, and once more, alone, the tests that failed: `python -m tests.twice` takes the arguments of pytest.

Twice red is red. A test that fails once and passes alone is a warning at the end: it depends on something else than the
product, and the next change mends it. Only failed tests have a second chance: a run that ended in another way, by an
internal error for example, has not run all tests and stays red.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(".pytest_cache/twice")

MOST = 40
"""So many failures are no accident, and are not run again."""


def main(arguments: list[str]) -> int:
    shutil.rmtree(CACHE, ignore_errors=True)
    code = _run(*arguments)
    failed = _failed()
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        return code
    if not all("::" in name for name in failed):
        # Files that could not be collected, or differently by each process: nothing else has run.
        return code
    print(f"\n{len(failed)} failed; they run once more, alone.", flush=True)
    code = _run(*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures", "none")
    once = sorted(set(failed) - set(_failed()))
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and once:
        print(
            "\nWARNING: these tests failed once and passed alone. Mend them, or what they test, with the next change:"
        )
        print("\n".join(f"  {name}" for name in once), flush=True)
    return code


def _run(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments], check=False
    ).returncode


def _failed() -> list[str]:
    """The names of the tests that failed in the last run."""
    record = CACHE / "v" / "cache" / "lastfailed"
    return list(json.loads(record.read_text())) if record.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
