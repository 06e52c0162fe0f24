"""The whole demonstration. Its result includes waits and used budgets, so it needs the machine for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_keeps_all_promises_through_a_kill_9() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "demo", "--seconds", "12", "--json"],
        capture_output=True,
        text=True,
        check=False,
        # Settings of the user are not those of the demonstration.
        env={**os.environ, "HEADGATE_URL": "memory://", "HEADGATE_CONCURRENCY": "1"},
    )
    verdict = json.loads(done.stdout)
    assert {promise["promise"]: promise["detail"] for promise in verdict["promises"] if not promise["kept"]} == {}
    assert verdict["kept"]
    assert done.returncode == 0
    assert "kill -9 of the worker" in done.stderr
    assert "a new worker runs" in done.stderr
    lost, refused, _, share, twice, _ = verdict["promises"]
    assert (lost["measured"], refused["measured"], twice["measured"]) == (0, 0, 0)
    assert f"of {verdict['calls']}" in refused["detail"]
    assert share["measured"] > 0.95
