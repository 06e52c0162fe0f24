"""What a second type checker says, basedpyright: mypy, which `make check` runs, is not the only one that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.until import patient

pytestmark = pytest.mark.slow

TYPING = Path(__file__).parents[1] / "typing"
PROGRAMS = Path(sys.executable).parent

FACE = (
    "headgate.app.",
    "headgate.admin.",
    "headgate.client.",
    "headgate.clock.",
    "headgate.errors.",
    "headgate.jobs.",
    "headgate.schedules.",
    "headgate.settings.",
    "headgate.tasks.",
    "headgate.limits.concurrency.",
    "headgate.limits.dynamic_window.",
    "headgate.limits.fixed_window.",
    "headgate.limits.key.",
    "headgate.limits.limit.",
    "headgate.limits.rate_limit.",
    "headgate.limits.sliding_window.",
    "headgate.limits.strict_rate.",
    "headgate.limits.standalone.limiter.",
    "headgate.limits.standalone.rate_gate.",
    "headgate.testing.enqueued.",
    "headgate.testing.live_mode.",
    "headgate.testing.manual_clock.",
    "headgate.testing.virtual_time.",
    "headgate.testing.workbench.",
)
"""What people write code against; all of it has its types written down, so that no checker has to guess."""


def basedpyright(*options: str | Path, cwd: Path) -> dict[str, Any]:
    """What it finds, with this environment's packages; it brings its own node, and asks no network."""
    ran = subprocess.run(
        [PROGRAMS / "basedpyright", "--outputjson", *options],
        cwd=cwd,
        env={**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=patient(80),
        check=False,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_basedpyright_reports_the_wrong_calls_and_no_others(tmp_path: Path) -> None:
    settings = {
        "include": [str(TYPING)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        # The lines that mypy ignores are the wrong ones, and must be reported here.
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    reported = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in basedpyright(cwd=tmp_path)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    wrong = {
        (page.name, number)
        for page in TYPING.glob("*.py")
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if "# type: ignore[" in line
    }
    assert len(wrong) > 40
    assert reported == wrong


@pytest.mark.nightly
def test_every_public_function_is_fully_annotated(tmp_path: Path) -> None:
    types = basedpyright("--verifytypes", "headgate", "--ignoreexternal", cwd=tmp_path)["typeCompleteness"]
    unknown = [
        each["name"]
        for each in types["symbols"]
        if each["isExported"] and not each["isTypeKnown"] and not each["isTypeAmbiguous"]
    ]
    assert [name for name in unknown if ".contrib.django" not in name] == []  # Django has no types to derive from
    lacking = [
        f"{each['name']}: {said['message']}"
        for each in types["symbols"]
        if each["isExported"] and each["name"].startswith(FACE) and (each["isTypeAmbiguous"] or not each["isTypeKnown"])
        for said in each["diagnostics"]
        if "docstring" not in said["message"]
    ]
    assert lacking == []
