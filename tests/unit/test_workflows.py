"""The workflows parse, may only read, have a time limit, and run only what exists."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_what_exists_with_few_rights_and_a_time_limit(path: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text())

    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            if "uses" in step:
                assert re.search(r"@(v\d+\.\d+\.\d+|[0-9a-f]{40})$", step["uses"]), step
            for line in step.get("run", "").splitlines():
                program, *arguments = line.removeprefix("sudo ").split()
                if program == "make":
                    assert {argument for argument in arguments if "=" not in argument} <= TARGETS, line
                else:
                    assert os.access(ROOT / program, os.X_OK), line
