"""The whole demonstration. What it says about waits and used budgets is about the machine as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from headgate.cli.demonstration.jobs_app import DemoLoad
from tests.until import patient

TIMED = ("quiet tenants' wait, p99, seconds", "share of the noisy tenant's budget used")
"""Promises that a busy machine breaks: here they have patience."""

PROGRAM = """
import sys
from headgate.cli.demonstration.jobs_app import DemoLoad
from headgate.cli.main import main

DemoLoad.__init__.__kwdefaults__["margin"] = float(sys.argv.pop(1))
main(prog_name="headgate")
"""
"""The command. How much later than its start a call may reach the API has patience too: a busy machine delays calls."""


@pytest.mark.nightly
def test_the_demo_keeps_all_promises_through_a_kill_9() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(patient(DemoLoad().margin)), "demo", "--seconds", "12", "--json"],
        capture_output=True,
        text=True,
        check=False,
        # Settings of the user are not those of the demonstration.
        env={**os.environ, "HEADGATE_URL": "memory://", "HEADGATE_CONCURRENCY": "1"},
    )
    verdict = json.loads(done.stdout)
    broken = {promise["promise"]: promise["detail"] for promise in verdict["promises"] if not promise["kept"]}
    assert {promise: detail for promise, detail in broken.items() if promise not in TIMED} == {}
    assert verdict["kept"] == (not broken)
    assert done.returncode == (1 if broken else 0)
    assert "kill -9 ends the worker" in done.stderr
    assert "a new worker runs" in done.stderr
    lost, refused, waits, share, twice, _ = verdict["promises"]
    assert (waits["promise"], share["promise"]) == TIMED
    assert (lost["measured"], refused["measured"], twice["measured"]) == (0, 0, 0)
    assert f"of {verdict['calls']}" in refused["detail"]
    # Who waits for the noisy tenant waits until the end.
    assert waits["measured"] < patient(1)
    # A window may begin late by so many seconds.
    period = verdict["window"] + verdict["margin"]
    assert share["measured"] >= period / (period + patient(0.1))
